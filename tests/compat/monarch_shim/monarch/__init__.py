"""`monarch`, to programs that are run with the folder above on their path: every name of it is looked up in ours."""

import sys

import compat_modules

compat_modules.install(sys.modules[__name__])
