"""Write the report files of a race."""

from trainer.core.errors import MissingDependency
from trainer.race.plots import draw_race
from trainer.race.queue import Echo, Race, machine_of
from trainer.race.report import budget, make_report, to_csv, to_json, to_markdown


def publish(race: Race, echo: Echo) -> None:
    """Write `race.md`, `race.csv`, `results.json` and `race.png` to the folder of a race."""
    plan, results = race.plan, race.results()
    report = make_report(plan, results)
    text = to_json(plan, results, report, machine_of(race.folder))
    (race.folder / "results.json").write_text(text, encoding="utf-8")
    (race.folder / "race.csv").write_text(to_csv(report), encoding="utf-8")
    markdown = to_markdown(report)
    (race.folder / "race.md").write_text(markdown, encoding="utf-8")
    try:
        draw_race(plan, results, report, race.folder / "race.png")
    # The picture needs an optional package; the numbers are worth more and are written already.
    except MissingDependency as error:
        echo(f"The picture was not drawn: {error}")
    echo(markdown)
    spent = ", ".join(
        f"{clock} {seconds:.0f} s" for clock, seconds in budget(plan, results).items()
    )
    echo(f"Time spent, including start-up and validation: {spent}.")
