"""The studio as a server and as a Hugging Face Space: `python -m hfjax_app serve`."""

import sys

from hfjax_app.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
