"""A user's own program as a workload: how it runs, and what of it is judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pmemlab.scenarios.document import PLACES, RESULTS, Scenario, ScenarioError
from pmemlab.scenarios.reading import load_scenario
from pmemlab.scenarios.session import ScenarioSession
from pmemlab.scenarios.verdict import ExpectationError

EXAMPLE = Path(__file__).parents[2] / "examples/own-training"

# This computer meets the topology's demands, so a process can prove where rows lie.
TOPOLOGY = """
name: here
summary: this computer as it is, with plain memory in the place of persistent memory
proof: {libpmem.is_pmem: 0}
pmem: {path: /dev/shm, size: 64M}
"""

SCENARIO = """
summary: a program of one's own
topology: here.yaml
storage_types: [PMEM_LIBPMEM]
workload: {command: %(command)s}
expect: %(expect)s
"""

ON_PMEM = "{rows: {file_under: pmem, is_pmem: false}}"
COMPARED = "{identical_to: DRAM, rows: {file_under: pmem, is_pmem: false}}"
TRAIN = (
    '[python, train.py, --storage-type, "{storage_type}", --pmem, "{pmem}", '
    '--pmem-size, "{pmem_size}"]'
)

# A program without any rows, which offers a decoy file and prints the document that a test wants.
LIAR = """
import json, os, pathlib, sys, time

lie = json.loads(pathlib.Path("lie.json").read_text())
if "claim" in lie:
    memory = (lie["decoy"].encode() + bytes(4096)) * 16
    decoy = pathlib.Path(sys.argv[1], "decoy")
    decoy.mkdir()
    (decoy / "file").write_bytes(memory[:4096])
    folder = pathlib.Path(os.environ["PMEMLAB_LOOK"])
    claim = {**lie["claim"], "folder": str(decoy)}
    (folder / "question.json").write_text(json.dumps({"pid": os.getpid(), "claims": [claim]}))
    print("pmemlab: look for rows", file=sys.stderr, flush=True)
    while not (folder / "answer.json").exists():
        time.sleep(0.01)
print(json.dumps(lie["document"]))
"""

ROW = bytes(range(64))


def table(**tier: Any) -> dict[str, Any]:
    """Returns a document's entry for a table with one good tier, changed by `tier`."""
    good = {
        **{"name": "PMEM_LIBPMEM", "rows": 1, "bytes": 64, "is_pmem": False},
        **{"file": "/dev/shm/table", "nodes": {"0": 1}, "devices": {"0:22": 4096}},
        **{"sought": 64, "found": 64},
    }
    return {"name": "table", "exported_rows": 1, "tiers": [{**good, **tier}]}


def document(**changed: Any) -> dict[str, Any]:
    return {"samples": 100, "seconds": 0.5, "tables": [table()], **changed}


def scenario(
    folder: Path, command: str, expect: str = ON_PMEM, name: str = "own", extra_fields: str = ""
) -> Scenario:
    (folder / "here.yaml").write_text(TOPOLOGY)
    path = folder / f"{name}.yaml"
    path.write_text(SCENARIO % {"command": command, "expect": expect} + extra_fields)
    return load_scenario(path)


def run(folder: Path, selected: Scenario) -> ScenarioSession:
    """Runs and judges a scenario on this computer. Returns the session, which has the metrics."""
    storage_type = selected.storage_types[0]
    session = ScenarioSession([(selected, storage_type)], machine="process", root=folder)
    try:
        outcome = session.wait_for(selected, storage_type, lambda _: None)
        assert session.judge(selected, storage_type, outcome) == []
    finally:
        session.close()
    return session


def run_liar(folder: Path, lie: dict[str, Any], expect: str = ON_PMEM) -> ScenarioSession:
    """Runs and judges the scenario of the program LIAR, which reads its lie from a file."""
    (folder / "liar.py").write_text(LIAR)
    (folder / "lie.json").write_text(json.dumps(lie))
    more = "\n".join(
        ("workload:", "  command: [python, liar.py, '{pmem}']", "  files: [lie.json]", "")
    )
    text = "[python, liar.py]"
    path = folder / "own.yaml"
    scenario(folder, text, expect)
    path.write_text(path.read_text().replace(f"workload: {{command: {text}}}\n", more))
    return run(folder, load_scenario(path))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE / "train.py", tmp_path)
    return tmp_path


def test_the_example_works(example: Path) -> None:
    session = run(example, scenario(example, TRAIN, COMPARED))
    found = {metric.name: metric for metric in session.metrics}
    assert found["samples_per_s"].not_judged == ()
    rate = found["samples_per_s"].value
    assert rate is not None
    assert rate > 0
    assert "works" in session.tables(100)


def test_the_example_s_own_scenario_can_be_read() -> None:
    wanted = load_scenario(EXAMPLE / "fsdax.yaml")
    assert (wanted.not_judged, wanted.reference_storage_type) == ((), "DRAM")


def test_the_example_with_rows_in_dram_does_not_pass_as_pmem(example: Path) -> None:
    command = TRAIN.replace("{storage_type}", "DRAM")
    with pytest.raises(ExpectationError, match="is mapped from no file; it must be a file under"):
        run(example, scenario(example, command))


def test_a_program_that_trains_differently_on_another_storage_type_fails(example: Path) -> None:
    train = example / "train.py"
    text = train.read_text()
    assert "learning_rate=0.5" in text
    train.write_text(text.replace("learning_rate=0.5", "learning_rate=0.5 if is_dram else 0.4"))
    with pytest.raises(ExpectationError, match=r"(?s)step 2: the loss is .*rows after training"):
        run(example, scenario(example, TRAIN, COMPARED))


def test_a_program_that_only_claims_that_its_rows_were_found_fails(tmp_path: Path) -> None:
    """Its document has all that the lab would find, but the program never asked the lab to look."""
    with pytest.raises(ExpectationError, match="none of its rows could be looked for"):
        run_liar(tmp_path, {"document": document()})


def test_a_program_that_shows_a_decoy_fails(tmp_path: Path) -> None:
    claim = {"rows": [[ROW.hex()]], "address": 0, "length": 0}
    lie = {"decoy": "no row at all", "claim": claim, "document": document()}
    with pytest.raises(ExpectationError, match=r"another process found 0 of 1 rows in .*decoy"):
        run_liar(tmp_path, lie)


def test_a_decoy_with_only_the_sampled_rows_is_too_small_for_the_table(tmp_path: Path) -> None:
    row = b"a row of its table".ljust(64, b".")
    claim = {"rows": [[row.hex()]] * 64, "address": 0, "length": 0}
    many = document(tables=[{**table(rows=10_000, bytes=640_000), "exported_rows": 10_000}])
    lie = {"decoy": row.decode(), "claim": claim, "document": many}
    with pytest.raises(ExpectationError, match="holds 4096 bytes, too few for rows of 640000"):
        run_liar(tmp_path, lie)


def test_a_pmem_tier_that_calls_itself_a_disk_is_not_judged_as_a_disk(tmp_path: Path) -> None:
    """Some rows of a disk tier may lie in a buffer, but no rows of a persistent memory tier."""
    row = b"a row of its table".ljust(64, b".")
    claim = {"rows": [[row.hex()], [ROW.hex()]], "address": 0, "length": 0}
    lie = {"decoy": row.decode(), "claim": claim}
    with pytest.raises(ExpectationError, match="another process found 1 of 2 rows"):
        run_liar(tmp_path, {**lie, "document": document(tables=[table(name="SSDHASH")])})


def test_a_claim_with_an_invalid_address_fails_the_program_and_not_the_lab(tmp_path: Path) -> None:
    claim = {"rows": [[ROW.hex()]], "address": "everywhere", "length": 4096}
    lie = {"decoy": "", "claim": claim, "document": document()}
    with pytest.raises(ExpectationError, match="rows could not be looked for: TypeError"):
        run_liar(tmp_path, lie)


def test_a_program_without_expectations_ran_but_is_not_said_to_work(tmp_path: Path) -> None:
    session = run_liar(tmp_path, {"document": {"samples": 100, "seconds": 0.5}}, expect="{}")
    (rate,) = (metric for metric in session.metrics if metric.name == "samples_per_s")
    assert (rate.value, rate.kind) == (200, "functional-only")
    assert rate.not_judged == (PLACES, RESULTS)
    text = session.tables(100)
    assert "ran; whether they work is not judged" in text
    assert "where rows lie and what was learnt" in text
    assert "works" not in text


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        ([], "the program's last line: the file: must be a mapping of fields, not []"),
        ({"seconds": 1}, "the program's last line: samples: is missing"),
        (document(seconds=0), "seconds: must be a number above 0, 1e+30 at most, not 0"),
        (document(losses=["x", 0.5]), "losses[0]: must be a finite number, or the text that"),
        (document(losses=[10**400]), "losses[0]: must be a finite number"),
        (document(seconds=1e-320), "samples: are more than 9.99989e-321 seconds can have"),
        (document(samples=10**400), "samples: are more than 0.5 seconds can have"),
        (document(auc=7), "auc: must be a number from 0 to 1, not 7"),
        (document(tables=[{"name": "t"}]), "tables[0].exported_rows: is missing"),
        (document(tables=[table(rows=-1)]), "tables[0].tiers[0].rows: must be a whole number"),
        (document(tables=[{**table(), "tiers": []}]), "table table has 0 tiers; PMEM_LIBPMEM has"),
    ],
)
def test_errors_in_a_document_name_the_field(tmp_path: Path, printed: object, problem: str) -> None:
    with pytest.raises(ExpectationError) as caught:
        run_liar(tmp_path, {"document": printed}, expect="{}")
    assert problem in str(caught.value)


@pytest.mark.parametrize("loss", ["NaN", '"nan"', "-Infinity"])
def test_diverged_training_fails(tmp_path: Path, loss: str) -> None:
    """The run on DRAM gives the same NaN, so a comparison alone would find identical losses."""
    printed = f'{{"samples": 1, "seconds": 1, "losses": [0.5, {loss}]}}'
    command = json.dumps(["echo", "{storage_type}\n" + printed.replace("{", "{{", 1) + "}"])
    wanted = scenario(tmp_path, command, "{identical_to: DRAM}")
    with pytest.raises(ExpectationError, match=r"losses\[1\]: must be a finite number"):
        run(tmp_path, wanted)


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        ('{{"samples": 1, "seconds": 1, "seconds": 2}}', "seconds is there twice"),
        ("[" * 90_000, "not JSON: maximum recursion depth"),
        ('{{"samples": 1, ', "last line:1: not JSON: "),
    ],
)
def test_a_malformed_last_line_is_an_error_of_the_program(
    tmp_path: Path, printed: str, problem: str
) -> None:
    wanted = scenario(tmp_path, json.dumps(["echo", printed]), "{}")
    with pytest.raises(ExpectationError, match=problem):
        run(tmp_path, wanted)


def test_a_program_that_prints_no_document_fails(tmp_path: Path) -> None:
    wanted = scenario(tmp_path, "[echo, done]", "{}")
    with pytest.raises(ExpectationError, match="last line is no JSON document: done"):
        run(tmp_path, wanted)


def test_the_error_of_a_failed_program_has_its_output(tmp_path: Path) -> None:
    for program in ("echo lost >&2; exit 3", "echo lost; exit 3"):
        wanted = scenario(tmp_path, f'[sh, -c, "{program}"]', "{}")
        with pytest.raises(ExpectationError, match=r"(?s)ended with status 3:.*lost"):
            run(tmp_path, wanted)


def test_only_a_program_s_files_are_copied_to_the_machine(tmp_path: Path) -> None:
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "__pycache__" / "x.pyc").touch()
    (tmp_path / "src" / "model.py").write_text("DIM = 8\n")
    (tmp_path / "secret").touch()
    (tmp_path / "list.sh").write_text("find . -type f | sort | tr '\\n' ' '\n")
    text = "[sh, list.sh]"
    scenario(tmp_path, text, "{}")
    path = tmp_path / "own.yaml"
    more = f"workload: {{command: {text}, files: [src]}}"
    path.write_text(path.read_text().replace(f"workload: {{command: {text}}}", more))
    with pytest.raises(ExpectationError, match=r"document: \./list\.sh \./src/model\.py$"):
        run(tmp_path, load_scenario(path))


@pytest.mark.parametrize(
    ("command", "expect", "more", "problem"),
    [
        ('[x, "{pmen}"]', "{}", "", "workload.command[1]: '{pmen}': {pmen} is no place; there are"),
        ('[x, "{pmem!r:>99999999}"]', "{}", "", "workload.command[1]: "),
        ('[x, "{pmem"]', "{}", "", "workload.command[1]: '{pmem' can't be used"),
        ('[x, "{ssd}"]', "{}", "", "workload.command[1]: '{ssd}': topology here has no ssd"),
        ("[x]", COMPARED, "", "workload.command: has no {storage_type}: it can't be run again"),
        ("[x], files: [../y]", "{}", "", "workload.files[0]: '../y' must be a file or folder"),
        ("[x], files: [y]", "{}", "", "workload.files[0]: 'y' must be a file or folder"),
        ("[x], arguments: {steps: 3}", "{}", "", "workload.arguments: is for name: tables and wdl"),
        ("[x], name: wdl", "{}", "", "workload.name: is for the lab's own workloads"),
        ("[x]", "{}", "storage: {size: 1M}\n", "storage: is for the lab's own workloads"),
        ("[]", ON_PMEM, "", "workload.command: must be a list of texts, the program first"),
    ],
)
def test_an_invalid_command_is_refused_before_any_machine_starts(
    tmp_path: Path, command: str, expect: str, more: str, problem: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, command, expect, extra_fields=more)
    assert problem in str(caught.value)


def test_a_word_of_a_command_may_be_longer_than_a_file_name(tmp_path: Path) -> None:
    """For example, a word may be a script."""
    printed = json.dumps(document(tables=[], note="x" * 5000)).replace("{", "{{").replace("}", "}}")
    run(tmp_path, scenario(tmp_path, json.dumps(["sh", "-c", f"echo '{printed}'"]), "{}"))
    with pytest.raises(ScenarioError, match=r"workload\.files\[0\]: 'x{300}' must be a file"):
        scenario(tmp_path, f"[echo], files: [{'x' * 300}]", "{}")


def test_a_doubled_brace_in_a_command_stands_for_a_brace(tmp_path: Path) -> None:
    wanted = scenario(tmp_path, '[echo, \'{{"samples": 8, "seconds": 2}}\']', "{}")
    assert run(tmp_path, wanted).metrics[0].value == 4
