"""Settings are read and resolved without loading torch, which takes seconds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_reading_settings_does_not_load_torch() -> None:
    program = (
        "import sys\n"
        "import trainer.config.cli_flags, trainer.config.presets, trainer.config.resolve\n"
        "print('torch' in sys.modules)"
    )

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "False"
