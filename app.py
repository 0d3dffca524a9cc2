"""The studio as a server and as a Hugging Face Space: settings -> backends -> studio -> launch."""

import os
import sys

from hfjax_app import console
from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.settings import load_settings


def main() -> int:
    """Serve until told to end. Returns the exit status: 0, 1 for a failure, 2 for a setting that is wrong."""
    console.quiet()
    try:
        # a Space is reached from outside its container
        in_space = "SPACE_ID" in os.environ and "HFJAX_HOST" not in os.environ
        settings = load_settings(host="0.0.0.0" if in_space else None)
        from hfjax_app.backends import Backends  # after quiet(), and after the settings turned out to be right
        from hfjax_app.studio import launch

        launch(Backends(settings), settings)
    except HfjaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, RequestRejected) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
