"""python -m trainer: sets how threads wait before torch is imported, then runs the command line."""

import os
import sys

# Threads that spin while they wait for each other make a step ten times slower as soon as anything
# else (a browser, say) wants a core; sleeping ones cost nothing on an idle machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from trainer.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
