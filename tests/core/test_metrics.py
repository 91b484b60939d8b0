"""The table of metrics says how each one is shown."""

from trainer.core import metrics


def test_each_metric_is_registered_under_its_own_name_and_kind() -> None:
    kinds = (metrics.TRAIN, metrics.VAL, metrics.PERF)

    for name, metric in metrics.METRICS.items():
        assert name == metric.name and name.startswith(kinds)
        assert metric.label and metric.digits > 0


def test_labels_are_unique_so_that_a_chart_can_tell_its_lines_apart() -> None:
    labels = [metric.label for metric in metrics.METRICS.values()]

    assert len(labels) == len(set(labels))


def test_the_part_of_a_loss_is_shown_like_the_loss() -> None:
    part = metrics.describe_metric(metrics.train_part("mel"))

    assert part.label == "Train loss: mel"
    assert part.lower_is_better and part.digits == 4


def test_a_measure_that_a_family_named_keeps_its_name() -> None:
    assert metrics.describe_metric(metrics.val_measure("accuracy")).label == "accuracy"


def test_a_title_names_the_unit() -> None:
    assert metrics.describe_metric(metrics.MEMORY_GIB).title == "Memory (GiB)"
    assert metrics.describe_metric(metrics.TRAIN_LOSS).title == "Train loss"


def test_a_new_metric_reaches_its_chart_and_the_page_in_one_line(monkeypatch) -> None:
    table = dict(metrics.METRICS)
    monkeypatch.setattr(metrics, "METRICS", table)

    name = metrics._register(metrics.Metric("perf/disk_s", "Disk", "s", chart="breakdown"))

    assert metrics.metrics_of("breakdown")[-1] == name
    assert metrics.describe_metrics()[-1]["title"] == "Disk (s)"


def test_all_values_are_loaded_of_what_is_drawn_or_compared() -> None:
    shown = {"tile": True}, {"chart": "breakdown"}, {"chart": "loss"}, {"compared": True}

    newest_only = [metrics.Metric("perf/new", "New", **how).newest_only for how in shown]

    assert newest_only == [True, True, False, False]
