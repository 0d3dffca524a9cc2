"""The studio as a server and as a Hugging Face Space: settings -> backends -> studio -> launch."""

import os
import sys

from hfjax_app.backends import Backends
from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.settings import load_settings
from hfjax_app.studio import launch


def main() -> int:
    """Serve until told to end. Returns the exit status: 0, 1 for a failure, 2 for a setting that is wrong."""
    # A Space is reached from outside its container.
    in_space = "SPACE_ID" in os.environ and "HFJAX_HOST" not in os.environ
    try:
        settings = load_settings(host="0.0.0.0" if in_space else None)
        launch(Backends(settings), settings)
    except RequestRejected as error:
        print(error, file=sys.stderr)
        return 2
    except HfjaxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
