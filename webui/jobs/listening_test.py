"""Run the listening test: synthesize takes of a sentence with several checkpoints, keep votes.

A take is a WAV file in the run's `listening` folder. Its name does not reveal the checkpoint, so
that votes stay blind.
"""

import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import soundfile

from trainer.core.atomic_io import append_line, replacing
from trainer.core.errors import DataError, RunError
from trainer.inference.listening_test import WINNERS, Vote, append_vote, rank, read_votes
from trainer.runs.run import Run
from webui.jobs import synthesis
from webui.jobs.speech_stream import MOST_LETTERS

RECORDING, BASE = "recording", "base"
MOST_CHECKPOINTS, MOST_TEXTS = 5, 6
"""Limits of one request, chosen by hand to keep the wait short; the base counts as a checkpoint."""
_SENTENCES = 30
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Take:
    """A sentence spoken by one entry: `base`, the step of a checkpoint, or `recording`."""

    id: str
    entry: str
    text: str
    speaker: str


def read_clips(run: Run) -> list[dict[str, Any]]:
    """Return the clips that a run chose when it started, held-out ones first; else none."""
    try:
        values = json.loads((run.folder / "clips.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return sorted(values["clips"], key=lambda clip: clip["split"] != "val")


def read_takes(run: Run) -> list[Take]:
    """Return the takes of a run whose audio exists, oldest first."""
    found: dict[str, Take] = {}
    try:
        text = (_folder(run) / "takes.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.split("\n"):  # Not splitlines: a text may hold U+2028.
        try:
            take = Take(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if take_path(run, take.id) is not None:
            found[take.id] = take
    return list(found.values())


def take_path(run: Run, take_id: str) -> Path | None:
    """Return the audio file of a take, or None if it does not exist."""
    if len(take_id) != 20 or not take_id.isalnum():
        return None
    path = _folder(run) / f"{take_id}.wav"
    return path if path.is_file() else None


def choices(run: Run, clips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what can be compared: checkpoints by step, the base and the recorded sentences."""
    infos = run.checkpoints()
    best = [info.step for info in infos if info.best]
    return {
        "steps": [info.step for info in infos],
        "best": best[-1] if best else None,
        "has_base": bool(run.config.base),
        "sentences": [
            {"text": clip["text"], "speaker": clip["speaker"], "split": clip["split"]}
            for clip in clips[:_SENTENCES]
        ],
    }


def make_takes(
    run: Run, texts: Sequence[str], entries: Sequence[str], speaker: str, clips: Sequence[dict]
) -> int:
    """Synthesize every text with every entry, except takes that exist.

    Returns:
        The number of new takes.

    Raises:
        DataError: no text or entry was chosen, or too many.
        RunError: a checkpoint does not exist, or synthesis failed.
    """
    texts = list(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))
    entries = list(dict.fromkeys(entries))
    _check_request(run, texts, entries)
    known = {take.id for take in read_takes(run)}
    wanted = [
        _take(entry, text, speaker) for entry in entries for text in texts if entry != RECORDING
    ]
    missing = [take for take in wanted if take.id not in known]
    copied = _copy_recordings(run, texts, clips, known) if RECORDING in entries else 0
    return copied + _speak(run, missing, speaker)


def vote(run: Run, first: str, second: str, winner: str) -> None:
    """Store a vote on two takes, given by their ids in the order in which they were played.

    Raises:
        RunError: the takes are not of the same sentence, or the answer is invalid.
    """
    takes = {take.id: take for take in read_takes(run)}
    if first not in takes or second not in takes or winner not in WINNERS:
        raise RunError("These two takes no longer exist. Generate them again.")
    one, two = takes[first], takes[second]
    if one.text != two.text or one.entry == two.entry:
        raise RunError("A vote needs two takes of the same sentence by different voices.")
    answer = Vote(one.entry, two.entry, winner, one.text, time.time())
    append_vote(_folder(run) / "votes.jsonl", answer)


def standings(run: Run) -> dict[str, Any]:
    """Return the number of votes of a run and the ranking that follows from them."""
    votes = read_votes(_folder(run) / "votes.jsonl")
    return {"votes": len(votes), "standings": [asdict(standing) for standing in rank(votes)]}


def _folder(run: Run) -> Path:
    return run.folder / "listening"


def _take(entry: str, text: str, speaker: str) -> Take:
    digest = hashlib.blake2b(f"{entry}\n{text}\n{speaker}".encode(), digest_size=10)
    return Take(digest.hexdigest(), entry, text, speaker)


def _check_request(run: Run, texts: Sequence[str], entries: Sequence[str]) -> None:
    if not texts or not entries:
        raise DataError("Choose at least one sentence and one voice.")
    if len(texts) > MOST_TEXTS or len([e for e in entries if e != RECORDING]) > MOST_CHECKPOINTS:
        raise DataError(
            f"Choose at most {MOST_TEXTS} sentences and {MOST_CHECKPOINTS} voices at a time."
        )
    if max(map(len, texts)) > MOST_LETTERS:
        raise DataError(f"A sentence is too long; the limit is {MOST_LETTERS} characters.")
    steps = {str(info.step) for info in run.checkpoints()}
    strangers = [entry for entry in entries if entry not in steps | {BASE, RECORDING}]
    if strangers:
        raise RunError(f"{run.name} no longer has the checkpoint '{strangers[0]}'.")


def _speak(run: Run, missing: Sequence[Take], speaker: str) -> int:
    if not missing:
        return 0
    texts = list(dict.fromkeys(take.text for take in missing))
    entries = list(dict.fromkeys(take.entry for take in missing))
    with tempfile.TemporaryDirectory() as work:
        files = synthesis.speak_takes(run, texts, entries, speaker=speaker, folder=Path(work))
        for take in missing:
            _keep(run, take, files[take.entry, texts.index(take.text)])
    return len(missing)


def _copy_recordings(run: Run, texts: Sequence[str], clips: Sequence[dict], known: set[str]) -> int:
    made = 0
    for clip in clips:
        take = _take(RECORDING, clip["text"], clip["speaker"])
        if clip["text"] not in texts or not clip["audio_path"] or take.id in known:
            continue
        try:
            wave, sample_rate = soundfile.read(clip["audio_path"], dtype="int16")
        except soundfile.LibsndfileError:
            continue
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "recording.wav"
            soundfile.write(str(file), wave, sample_rate)
            _keep(run, take, file)
        known.add(take.id)
        made += 1
    return made


def _keep(run: Run, take: Take, file: Path) -> None:
    folder = _folder(run)
    folder.mkdir(exist_ok=True)
    with replacing(folder / f"{take.id}.wav") as partial:
        shutil.copyfile(file, partial)
    with _LOCK:
        append_line(folder / "takes.jsonl", json.dumps(asdict(take), ensure_ascii=False))
