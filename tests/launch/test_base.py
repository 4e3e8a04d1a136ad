"""What a child's environment holds."""

import os

import pytest

from monarch_kernel.launch import filtered_environment

KEPT = {
    "PATH", "HOME", "LANG", "LC_ALL", "USER", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_DEBUG", "HF_TOKEN", "XDG_STATE_HOME", "SSH_AUTH_SOCK",
}  # fmt: skip
DROPPED = {
    "JPY_PARENT_PID", "JPY_SESSION_NAME", "IPYKERNEL_CELL_NAME", "JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "KERNEL_ID",
    "JUPYTER_SERVER_URL", "PYDEVD_USE_FRAME_EVAL", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "INVOCATION_ID",
    "MONARCH_KEEPER", "MONARCH_HOST", "_", "SHLVL",
}  # fmt: skip


def test_what_user_code_expects_stays_and_what_was_meant_for_the_kernel_goes():
    environ = dict.fromkeys(KEPT | DROPPED, "x")
    for proxies in (False, True):
        assert filtered_environment(environ, proxies=proxies) == dict.fromkeys(KEPT, "x")


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "grpc_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"])
def test_proxies_reach_user_code_only(name):
    assert filtered_environment({name: "x"}) == {}
    assert filtered_environment({name: "x"}, proxies=True) == {name: "x"}


def test_the_kernels_inline_backend_goes_and_a_chosen_one_stays():
    assert filtered_environment({"MPLBACKEND": "module://matplotlib_inline.backend_inline"}) == {}
    assert filtered_environment({"MPLBACKEND": "agg"}) == {"MPLBACKEND": "agg"}


def test_the_default_is_our_own(monkeypatch):
    monkeypatch.setenv("MARK", "1")
    assert filtered_environment()["MARK"] == "1"
    assert filtered_environment() is not os.environ
