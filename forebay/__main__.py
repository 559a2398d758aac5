"""`python -m forebay` is the `forebay` command."""

import sys

from forebay.main import main

sys.exit(main())
