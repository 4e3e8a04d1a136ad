"""``python -m monarch_kernel.kernel -f CONNECTION_FILE``: what the kernelspec starts."""

from monarch_kernel.kernel.app import main

if __name__ == "__main__":
    main()
