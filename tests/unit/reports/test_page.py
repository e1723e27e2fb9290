import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedhca2.reports.figures import Figure
from fedhca2.reports.figures.groups import ATTENDANCE, attendance_figures, left_out
from fedhca2.reports.page import Section, Table, Text
from fedhca2.reports.page.predictions import colour_key, image_scores, in_words, run_galleries
from fedhca2.reports.page.several import several_sections
from fedhca2.reports.page.write import render, single_sections, write_page
from fedhca2.reports.tables import conclusion
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import privacy_spent
from fedhca2.tasks import get_task
from made_run import made_run, with_diagnostics, with_twin


def blocks(run, id):
    """What a tab of a run's page shows."""
    return next(section for section in single_sections(run) if section.id == id).blocks


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def page_of(folder, *runs):
    return write_page(runs, folder / "page.html").read_text("utf-8")


def test_a_run_has_all_its_sections_and_none_about_participation_if_all_took_part(tmp_path):
    ids = "results training predictions learned-weights update-similarity decoder-attention client-groups cost settings"
    assert [section.id for section in single_sections(made_run(tmp_path))] == ids.split()


def test_two_figures_with_one_id_are_refused():
    sections = [Section(name, [Figure("gains", name, "", [])]) for name in ("results", "transfer")]
    with pytest.raises(ValueError, match="gains"):
        render("twice", sections)


def test_who_gained_is_drawn_from_scores_in_a_run_with_diagnostics(tmp_path):
    page = page_of(tmp_path, with_diagnostics(made_run(tmp_path / "run", better=1.25)))
    held = re.search(r'id="figures">(.*?)</script>', page, re.S)
    assert [trace["x"] for trace in json.loads(held[1])["gains"]["data"]] == [[25.0], [25.0], [25.0, 20.0]]


def gallery_of(run, client, title, **arrays):
    """A gallery of a client whose samples are these."""
    np.savez(run.samples_file(client), image=np.zeros((2, 3, 4, 4), np.uint8), **arrays)
    return next(block for block in blocks(run, "predictions") if block.title == title)


def test_a_score_under_a_picture_has_its_metric(tmp_path):
    gallery = next(block for block in run_galleries(made_run(tmp_path)) if block.title == "home, Depth")
    assert gallery.rows[0][1][-1].caption.startswith("RMSE ")


def test_a_class_is_right_or_wrong_and_has_no_score(tmp_path):
    labels, ours = np.array([[1.0], [0.0]], np.float32), np.array([[1.0], [1.0]], np.float32)
    arrays = {"label.classification": labels, "before.classification": ours, "after.classification": ours}
    gallery = gallery_of(made_run(tmp_path), "road", "road", **arrays)
    assert [pictures[-1].caption for _, pictures in gallery.rows] == ["right", "wrong"]


def test_measured_values_have_their_unit():
    task = replace(get_task("regression"), unit="°")
    assert in_words(task, np.array([-18.09]), ["angle"]) == [("angle: -18.09°", None)]
    assert in_words(task, np.array([-18.09]), []) == [("-18.09°", None)]


def test_depth_is_painted_on_the_range_of_its_label(tmp_path):
    near, far = (np.linspace(*ends, 16, dtype=np.float32).reshape(1, 4, 4) for ends in ((1, 2), (3, 9)))
    maps = {f"{when}.depth": np.stack([near, far]) for when in ("label", "before", "after")}
    gallery = gallery_of(made_run(tmp_path), "home", "home, Depth", **maps)
    labels = [pictures[1] for _, pictures in gallery.rows]
    assert sorted(label.caption for label in labels) == ["1.0 to 2.0 m", "3.0 to 9.0 m"]
    assert len({picture.address for _, pictures in gallery.rows for picture in pictures[1:]}) == 1
    assert gallery.key.strip


def test_a_page_has_the_title_the_date_and_the_command(tmp_path):
    runs = [made_run(tmp_path / name, name) for name in ("local", "fedper")]
    origin = {"command": "fedhca2 compare", "started": "2026-11-18T13:16:34+00:00", "git": None}
    for run in runs:
        run.config["title"] = "Three small clients"
        vars(run)["result"] = run.outcome.model_copy(update={"origin": origin})
    for sections in (single_sections(runs[0]), several_sections(runs)):
        told = sections[0].blocks[0]
        assert all(words in told for words in ("Three small clients", "18 November 2026", "`fedhca2 compare`"))
    assert "<code>fedhca2 compare</code>" in page_of(tmp_path, *runs)


def test_what_left_out_means_is_said(tmp_path):
    table = blocks(made_run(tmp_path), "cost")[-1]
    assert "late" in table.note
    assert ["excluded replies", "0"] in texts(table)


def test_what_noised_updates_cost_is_shown(tmp_path):
    run = made_run(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    spent = privacy_spent(2.0, {"road": 3, "home": 1})
    (tmp_path / "result.json").write_text(json.dumps({**result, "privacy": spent}))
    expected = [["home", "1", "1.993", "1.993"], ["road", "3", "3.709", "3.709"]]
    assert texts(blocks(run, "privacy")[0]) == expected


def test_the_answer_says_who_gained_how_certain_that_is_and_what_it_cost(tmp_path):
    run = made_run(tmp_path, rounds=1, better=1.25)
    answer, bars, results = blocks(run, "results")
    tiles = {tile.name: tile for tile in answer.tiles}
    assert "4 of 4 scores are better, from +20.0% to +25.0%" in answer.sentences[0]
    assert "One seed" in answer.sentences[0]
    assert list(tiles) == ["Best", "Worst", "Time", "Traffic"]  # and not Δm by client: there is one of each kind
    assert (tiles["Best"].fact, tiles["Worst"].fact, tiles["Time"].fact) == ("+25.0%", "+20.0%", "4.5 s")
    assert tiles["Worst"].detail.startswith("home/depth: RMSE 2.00 m local, 1.60 m")
    assert tiles["Time"].detail.startswith("1 round on")
    assert answer.meaning[0].removeprefix("Δm: ") in conclusion(run.outcome, run.task_set)  # as in the terminal
    assert "±" not in f"{answer.meaning} {answer.sentences}"  # one seed has no error bar
    names = {"road": ["road"], "shop": ["shop"], "home": ["home/semseg", "home/depth"]}
    assert {trace["name"]: trace["y"] for trace in bars.data} == names
    assert [row[-1] for row in texts(results)] == ["+25.0%", "+25.0%", "+25.0%", "+20.0%"]


def test_with_several_clients_of_a_kind_both_gains_are_told(tmp_path):
    answer = blocks(with_twin(made_run(tmp_path), delta_m=5.0, delta_m_by_client=20.0), "results")[0]
    assert answer.number == "+5.00%"
    assert [tile.fact for tile in answer.tiles if tile.name == "Δm by client"] == ["+20.0%"]


def test_scores_without_a_gain_are_counted_once_in_all_sentences(tmp_path):
    run = made_run(tmp_path, better=1.25)
    run.result.baseline["shop"]["sal"]["max_f"] = 0.0
    (told, *_) = blocks(run, "results")[0].sentences
    assert "3 of 3 scores are better" in told
    assert "1 more without a gain" in told


def test_an_unfinished_run_has_a_page(tmp_path):
    assert "The run is not finished." in page_of(tmp_path, made_run(tmp_path, finished=False))


def test_local_and_federated_predictions_of_every_client_and_task_are_side_by_side(tmp_path):
    run = made_run(tmp_path)
    made_run(tmp_path / "baseline", "local")
    galleries = blocks(run, "predictions")
    assert [each.title for each in galleries] == ["road", "shop", "home, Semantic segmentation", "home, Depth"]
    assert galleries[0].columns == ["input", "label", "local", "fedhca2"]
    assert [word for word, _ in galleries[0].rows] == ["best of 2", "worst of 2"]


def test_the_score_of_an_image_is_that_of_its_prediction():
    label = np.zeros((2, 1, 4, 4), np.float32)
    prediction = np.stack([label[0], np.ones_like(label[0])])
    assert image_scores(get_task("semseg"), prediction, label) == [100.0, 0.0]


def test_a_page_explains_the_classes_that_are_seen_and_no_others():
    seen = [np.array([[[[0.0, 2.0], [255.0, 2.0]]]])]
    swatches = colour_key(get_task("semseg"), seen, ["wall", "bed", "lamp"]).swatches
    assert [name for name, _ in swatches] == ["wall", "lamp"]


def test_no_class_is_black_without_a_background():
    assert colour_key(get_task("semseg"), [np.zeros((1, 1, 1, 1))], ["wall"]).swatches != [("wall", "#000000")]


def test_a_comparison_shows_gains_weights_conflicts_and_settings(tmp_path):
    runs = [made_run(tmp_path / "a", "local"), made_run(tmp_path / "b", "fedhca2", better=1.1, seed=3)]
    sections = several_sections(runs)
    tables = {b.title: b for section in sections for b in section.blocks if isinstance(b, Table)}
    figures = {section.id: [figure.title for figure in section.figures] for section in sections}
    assert tables["Results"].columns[1] == "Δm % ↑"
    assert texts(tables["Gain over local"]) == [["fedhca2", "+10.0%", "+10.0%", "+10.0%", "+9.09%"]]
    assert [row[0] for row in texts(tables["Settings that differ"])] == ["seed", "method.name"]
    assert ["rounds", "3"] in texts(tables["Settings in common"])
    assert "fedhca2: α over rounds" in figures["learned-weights"]
    assert "fedhca2: Similarity of encoder updates" in figures["update-similarity"]


def test_nothing_is_fetched(tmp_path):
    page = page_of(tmp_path, made_run(tmp_path))
    own = page[: page.index("<script>")] + page[page.index('<script type="application/json"') :]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", own)


def test_what_runs_say_is_text_and_cannot_end_a_script():
    hostile = "<img src=x onerror=alert(1)>"
    plain, page = (
        render(name, [Section(name, [Text(name, name), Figure("f", name, name, [{"name": end}])])])
        for name, end in (("", ""), (hostile, f"</script>{hostile}"))
    )
    assert hostile not in page
    assert page.count("</script>") == plain.count("</script>")


def test_who_was_left_out_is_shown_with_the_round_and_the_reason(tmp_path):
    reasons = {"shop": "no reply in time", "node 7": "unknown client"}
    table = blocks(made_run(tmp_path, away=("shop",), refused=reasons.items()), "participation")[1]
    assert texts(table) == [[client, "2", why] for client, why in reasons.items()]


def test_a_client_that_failed_at_the_end_is_shown(tmp_path):
    made_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "failed", "round": 3, "client": "road", "why": "the loss became nan"}\n')
        file.write('{"event": "absent", "round": 3, "clients": {"home": "not there"}}\n')
    assert left_out(RunFiles.open(tmp_path)) == [(4, "road", "the loss became nan"), (4, "home", "not there")]


def test_who_took_part_is_told_from_who_was_left_out_or_not_asked(tmp_path):
    run = made_run(tmp_path, away=("shop", "home"), refused=[("home", "no reply in time")])
    (figure,) = attendance_figures(run)
    rows = [[list(ATTENDANCE)[state] for state in row] for row in figure.data[0]["z"]]
    second = {client: row[1] for client, row in zip(figure.data[0]["y"], rows, strict=True)}
    assert second == {"road": "took part", "shop": "not asked", "home": "excluded"}
    assert {state for row in rows for state in (row[0], row[2])} == {"took part"}


def test_a_second_reply_leaves_its_client_in(tmp_path):
    assert attendance_figures(made_run(tmp_path, refused=[("road (again)", "a client should reply once")])) == []


def test_a_site_without_a_baseline_has_no_gain(tmp_path):
    run = made_run(tmp_path)
    del run.result.baseline["shop"]
    assert texts(blocks(run, "results")[-1])[1] == ["shop", "maxF ↑", "—", "40.0%", "—"]


def test_one_seed_has_no_whiskers_and_several_have(tmp_path):
    runs = [made_run(tmp_path / "local", "local"), made_run(tmp_path / "0", better=1.1)]
    more = [*runs, made_run(tmp_path / "1", seed=1)]
    assert ["error_x" in several_sections(found)[0].figures[0].data[0] for found in (runs, more)] == [False, True]
