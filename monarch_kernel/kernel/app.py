"""Starting the kernel."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp

from monarch_kernel.kernel.kernel import MonarchKernel


def main() -> None:
    """Run the kernel that the command line describes, until it is shut down."""
    IPKernelApp.launch_instance(kernel_class=MonarchKernel)
