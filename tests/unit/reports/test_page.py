import json
import re

from fedhca2.reports.figures import Figure
from fedhca2.reports.figures.attendance import LEFT_OUT, NOT_ASKED, TOOK_PART, attendance_figures, left_out
from fedhca2.reports.page.blocks import Section, Text
from fedhca2.reports.page.write import render, several_sections, single_sections, write_page
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import privacy_spent
from made_run import made_run, with_twin


def test_a_run_has_all_its_sections(tmp_path):
    assert [section.id for section in single_sections(made_run(tmp_path))] == [
        "results",
        "training",
        "predictions",
        "weights",
        "updates",
        "attention",
        "groups",
        "cost",
        "settings",
    ]


def test_what_noised_updates_cost_is_shown(tmp_path):
    run = made_run(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    spent = privacy_spent(2.0, {"road": 3, "home": 1})
    (tmp_path / "result.json").write_text(json.dumps({**result, "privacy": spent}))
    table = next(section for section in single_sections(run) if section.id == "privacy").blocks[0]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["home", "1", "1.993", "1.993"],
        ["road", "3", "3.709", "3.709"],
    ]


def test_the_gain_of_every_task_is_shown(tmp_path):
    results = single_sections(made_run(tmp_path, better=1.25))[0].blocks[0]
    assert [row[-1].text for row in results.rows] == ["+25.0 %", "+25.0 %", "+25.0 %", "+20.0 %"]


def test_with_several_clients_of_a_kind_both_gains_are_told(tmp_path):
    run = with_twin(made_run(tmp_path), delta_m=5.0, delta_m_by_client=20.0)
    note = single_sections(run)[0].blocks[0].note
    assert note.startswith("Δm +5.00 %")
    assert "by client, Δm is +20.0 %." in note


def test_with_one_client_of_a_kind_one_gain_is_told(tmp_path):
    assert single_sections(made_run(tmp_path))[0].blocks[0].note.count("by client") == 0


def test_a_page_counts_the_scores_that_are_better_than_alone(tmp_path):
    assert "4 of 4 scores are better than alone" in single_sections(made_run(tmp_path, better=1.25))[0].blocks[0].note


def test_an_unfinished_run_has_a_page(tmp_path):
    assert "The run is not finished." in write_page(
        [made_run(tmp_path, finished=False)], tmp_path / "page.html"
    ).read_text("utf-8")


def test_every_client_and_task_has_predictions(tmp_path):
    galleries = single_sections(made_run(tmp_path))[2].blocks
    assert {gallery.title: len(gallery.rows) for gallery in galleries} == {"road": 2, "shop": 2, "home": 4}


def test_several_runs_show_the_settings_that_differ(tmp_path):
    runs = [made_run(tmp_path / "a", "local"), made_run(tmp_path / "b", "fedhca2", seed=3)]
    settings = several_sections(runs)[-1].blocks[0]
    assert [row[0].text for row in settings.rows] == ["seed", "method.name"]


def test_several_runs_show_gains_over_the_first(tmp_path):
    runs = [made_run(tmp_path / "a", "local"), made_run(tmp_path / "b", "fedhca2", better=1.1)]
    gains = several_sections(runs)[0].blocks[2]
    assert [cell.text for cell in gains.rows[0]] == ["fedhca2", "+10.0 %", "+10.0 %", "+10.0 %", "+9.09 %"]


def test_nothing_is_fetched(tmp_path):
    page = write_page([made_run(tmp_path)], tmp_path / "page.html").read_text("utf-8")
    own = page[: page.index("<script>")] + page[page.index('<script type="application/json"') :]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", own)


def test_what_runs_say_is_text():
    hostile = "<img src=x onerror=alert(1)>"
    figure = Figure("f", hostile, hostile, [{"name": "</script>" + hostile}])
    assert hostile not in render(hostile, [Section("s", hostile, [Text(hostile, hostile), figure])])


def test_a_figure_cannot_end_its_script():
    figure = Figure("f", "", "", [{"name": "</script>"}])
    plain = render("", [Section("s", "", [Figure("f", "", "", [])])])
    assert render("", [Section("s", "", [figure])]).count("</script>") == plain.count("</script>")


def test_who_was_left_out_is_shown_with_the_round_and_the_reason(tmp_path):
    run = made_run(tmp_path, away=("shop",), refused={"shop": "no reply in time", "node 7": "unknown client"}.items())
    table = next(section for section in single_sections(run) if section.id == "attendance").blocks[1]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["shop", "2", "no reply in time"],
        ["node 7", "2", "unknown client"],
    ]


def test_a_client_that_failed_at_the_end_is_shown(tmp_path):
    made_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "failed", "round": 3, "client": "road", "why": "the loss became nan"}\n')
        file.write('{"event": "absent", "round": 3, "clients": {"home": "not there"}}\n')
    run = RunFiles.open(tmp_path)
    assert left_out(run) == [(4, "road", "the loss became nan"), (4, "home", "not there")]


def test_a_run_in_which_all_took_part_has_no_attendance(tmp_path):
    assert "attendance" not in [section.id for section in single_sections(made_run(tmp_path))]


def test_the_map_tells_left_out_from_not_asked(tmp_path):
    figure = attendance_figures(made_run(tmp_path, away=("shop", "home"), refused=[("home", "late")]))[0]
    assert dict(zip(figure.data[0]["y"], figure.data[0]["z"], strict=True)) == {
        "road": [TOOK_PART, TOOK_PART, TOOK_PART],
        "shop": [TOOK_PART, NOT_ASKED, TOOK_PART],
        "home": [TOOK_PART, LEFT_OUT, TOOK_PART],
    }


def test_a_second_reply_leaves_its_client_in(tmp_path):
    figures = attendance_figures(made_run(tmp_path, refused=[("road (again)", "a client should reply once")]))
    assert figures == []


def test_a_site_without_a_baseline_has_no_gain(tmp_path):
    run = made_run(tmp_path)
    del run.result["baseline"]["shop"]
    assert [cell.text for cell in single_sections(run)[0].blocks[0].rows[1]] == ["shop", "maxF ↑", "—", "40.0 %", "—"]
