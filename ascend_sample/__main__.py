"""``python -m ascend_sample``."""

import sys

from ascend_sample.cli import main

sys.exit(main())
