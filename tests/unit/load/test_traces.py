from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.load import traces
from forebay.load.record_line import RecordLine
from forebay.load.traces import FORMATS, TraceError, TraceRow, format_of, read_records, read_trace

COMMON = "arrival_s,prompt_tokens,output_tokens,tenant,session_id,model,reusable_prefix_tokens\n"
RECORDED = {
    "forebay": 1, "timestamp": 0, "time": 1700000000.5, "input_length": 30, "output_length": 7, "tenant": "acme",
    "class": "batch", "model": "m", "limit_tokens": 256, "stream": False, "cached_expected": 16,
}  # fmt: skip
SAMPLES = {
    "common": COMMON + "5,374,44,acme,s1,m,12\n6.5,10,0,,,,\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:05.4799600,10,0\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,374,44,418,Conversation log\n6.5,GPT-4,10,0,10,API log\n",
    "mooncake": '{"timestamp": 5000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
    '{"timestamp": 6500, "input_length": 10, "output_length": 0, "hash_ids": [2]}\n',
    "forebay": json.dumps(RECORDED | {"time": 5, "input_length": 374, "output_length": 44})
    + "\n"
    + json.dumps(RECORDED | {"time": 6.5, "input_length": 10, "output_length": 0})
    + "\n",
}


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    """A file with this in it."""
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_sample_of_each_format_is_here() -> None:
    """Every format that is claimed is tested below."""
    assert set(FORMATS) == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_known_by_its_content(name: str, packed: bool, tmp_path: Path) -> None:
    """Times count from the first row and tokens are what the file says, packed or not, whatever its name."""
    text = SAMPLES[name].encode()
    file = written(tmp_path, gzip.compress(text) if packed else text)
    rows = list(read_trace(file))
    assert name == format_of(file)
    assert [(0.0, 374, 44), (1.5, 10, 0)] == [
        (round(row.at_s, 6), row.prompt_tokens, row.output_tokens) for row in rows
    ]


def test_the_common_columns(tmp_path: Path) -> None:
    """All columns are read, in any order and with unknown ones between; empty ones say nothing."""
    header = "class,stream,limit_tokens,arrival_s,hour,prompt_tokens,output_tokens,tenant,session_id,model"
    text = (
        f"\ufeff{header},reusable_prefix_tokens\r\nbatch,false,256,1,12,5.0,6,acme,s,m,3\r\n,,,2,,5,6,,,,\r\n"
    )
    first, second = read_trace(written(tmp_path, text))
    assert TraceRow(0.0, 5, 6, "acme", "s", "m", 3, "batch", 256, False) == first
    assert TraceRow(1.0, 5, 6) == second


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    """The second release has further columns; model and session are taken."""
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "1.5,17,9.1,GPT-4,3,4,7,Conversation log\n"
    )
    assert [TraceRow(0.0, 3, 4, session="17", model="GPT-4")] == list(read_trace(written(tmp_path, text)))


def test_azure_2024_has_a_zone(tmp_path: Path) -> None:
    """Times with a zone are read as well."""
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n"
    )
    assert [0.0, 0.0074] == [round(row.at_s, 4) for row in read_trace(written(tmp_path, text))]


def test_reusable_prefixes_of_mooncake(tmp_path: Path) -> None:
    """The leading blocks that came before are what a cache could hold, and never more than the prompt."""
    rows = [(1000, [1, 2]), (1100, [1, 2, 3]), (600, [1, 2]), (900, [9, 2])]
    text = "".join(
        json.dumps({"timestamp": at, "input_length": size, "output_length": 1, "hash_ids": blocks}) + "\n"
        for at, (size, blocks) in enumerate(rows)
    )
    assert [0, 1024, 600, 0] == [row.cached_tokens for row in read_trace(written(tmp_path, text))]


def test_our_own_record_as_a_trace(tmp_path: Path) -> None:
    """What the recorder wrote is a trace with tenants and classes; unknown fields do not matter."""
    file = written(tmp_path, json.dumps(RECORDED | {"later": [1]}) + "\n")
    assert [TraceRow(0.0, 30, 7, "acme", "", "m", 16, "batch", 256, False)] == list(read_trace(file))
    assert ["acme"] == [line.tenant for _, line in read_records(file)]


def test_only_records_are_read_as_records(tmp_path: Path) -> None:
    """Somebody else's trace has no decisions to be read."""
    with pytest.raises(TraceError, match=r"is a trace \(azure\), not a record"):
        list(read_records(written(tmp_path, SAMPLES["azure"])))


def test_limit(tmp_path: Path) -> None:
    """No more rows than wanted."""
    file = written(tmp_path, SAMPLES["common"])
    assert [0, 1, 2, 2] == [len(list(read_trace(file, limit))) for limit in (0, 1, 2, None)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_rows_come_in_order_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, times: list[int]
) -> None:
    """Within the window rows are sorted; one that is late by more comes at the time of the row before it."""
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{at_s},{number},1\n" for number, at_s in enumerate(times)
    )
    file = written(tmp_path_factory.mktemp("trace"), text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(traces, "WINDOW", 8)
        rows = list(read_trace(file))
    assert sorted(row.at_s for row in rows) == [row.at_s for row in rows]
    assert list(range(len(times))) == sorted(row.prompt_tokens for row in rows)
    if max(number - sorted(times).index(at_s) for number, at_s in enumerate(times)) < 8 and len(times) <= 8:
        assert [at_s - min(times) for at_s in sorted(times)] == [row.at_s for row in rows]


def test_a_file_is_streamed(tmp_path: Path) -> None:
    """A mistake far down in a file does not keep what is far above it from being read."""
    good = "".join(f"{number},1,1\n" for number in range(traces.WINDOW + 100))
    file = written(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + good + "x,1,1\n")
    rows = read_trace(file)
    assert list(range(50)) == [round(row.at_s) for row in itertools.islice(rows, 50)]
    with pytest.raises(TraceError, match=rf"line {traces.WINDOW + 102}: arrival_s: found 'x'"):
        list(rows)


WRONG = [
    ("", "is empty"),
    ("\n \n", "is empty"),
    ("a,b\n1,2\n", r"line 1: is no trace: found 'a, b', allowed are CSV headers .*ContextTokens.*Mooncake"),
    ('{"a": 1}\n', r"line 1: is no trace: found 'a'"),
    ("{nope\n", "line 1: JSON is malformed"),
    ("{" + '"a":{' * 5000, "line 1: "),
    (b"\x00\xff\xfe\x01" * 50, "line 1: is no trace"),
    (COMMON + "1,2\n", "line 2: found 2 columns, allowed are 7"),
    (COMMON + "-1,2,3,,,,\n", "line 2: arrival_s: found '-1', allowed are numbers from 0"),
    (COMMON + "inf,2,3,,,,\n", "line 2: arrival_s: found 'inf'"),
    (COMMON + "\n1,,3,,,,\n", "line 3: prompt_tokens: found nothing"),
    (COMMON + "1,2.5,3,,,,\n", "line 2: prompt_tokens: found '2.5', allowed are whole numbers"),
    (COMMON + "1,2,1e12,,,,\n", r"line 2: output_tokens: found '1e12', allowed are numbers from 0 to 1e\+08"),
    (COMMON + "1,2,nan,,,,\n", "line 2: output_tokens: found 'nan'"),
    (COMMON + '1,2,3,"' + "x\n" * 100_000, "is no CSV: field larger than field limit"),
    ("stream," + COMMON + "maybe,1,2,3,,,,\n", "line 2: stream: found 'maybe', allowed are true and false"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP: found 'noon'"),
    ('{"timestamp": "soon", "input_length": 1, "output_length": 1}\n', r"line 1: .*`\$.timestamp`"),
    ('{"timestamp": 1, "input_length": -1, "output_length": 1}\n', "line 1: input_length: found -1"),
    ('{"timestamp": 1, "input_length": 1}\n', "found 'timestamp, input_length'"),
    (json.dumps(RECORDED | {"forebay": 2}), "line 1: forebay: found version 2, allowed is 1"),
    (COMMON + "1e300,2,3,,,,\n", r"line 2: arrival_s: found '1e300', allowed are numbers from 0 to 1e\+11"),
    ('{"timestamp": 1e300, "input_length": 1, "output_length": 1}\n', r"timestamp: found 1e\+300"),
    (json.dumps(RECORDED | {"time": 1e300}), r"line 1: time: found 1e\+300"),
    (json.dumps(RECORDED | {"cost_gpu_s": -1.0}), r"line 1: cost_gpu_s: found -1.0"),
    (json.dumps(RECORDED | {"ttft_s": 1e300}), r"line 1: ttft_s: found 1e\+300"),
    (json.dumps(RECORDED | {"cached_tokens": 1e300}), r"line 1: .*cached_tokens"),
    (json.dumps(RECORDED | {"prompt_tokens": -3}), r"line 1: prompt_tokens: found -3"),
    (json.dumps(RECORDED | {"limit_tokens": 1 << 31}), r"line 1: limit_tokens: found 2147483648"),
    (json.dumps(RECORDED | {"time": "x"}), r"line 1: .*`\$.time`"),
    (json.dumps(RECORDED) + "\n" + json.dumps(RECORDED)[:-9], "line 2: "),
    (gzip.compress(SAMPLES["common"].encode())[:-12], "cannot be read: "),
    (b"\x1f\x8b nonsense", "cannot be read: "),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_place(text: str | bytes, said: str, tmp_path: Path) -> None:
    """File, line, key, what was found and what is allowed; never another exception."""
    file = written(tmp_path, text)
    with pytest.raises(TraceError, match=said) as failed:
        list(read_trace(file))
    assert str(failed.value).startswith(str(file))
    assert len(str(failed.value)) < 800


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """A file that is missing, or none."""
    with pytest.raises(TraceError, match="nowhere: cannot be read: No such file"):
        list(read_trace(tmp_path / "nowhere"))
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        list(read_trace(tmp_path))


@pytest.mark.parametrize("key", [*traces._RECORD_SECONDS, *traces._RECORD_TOKENS, "limit_tokens"])
def test_numbers_of_a_record_are_looked_at_however_it_is_read(key: str, tmp_path: Path) -> None:
    """What no recorder writes is refused for `report` as for the commands that take a trace."""
    file = written(tmp_path, json.dumps(RECORDED | {key: -1}))
    for read in (read_trace, read_records):
        with pytest.raises(TraceError, match=f"line 1: {key}: found -1"):
            list(read(file))


def test_each_number_of_a_record_has_a_bound() -> None:
    """Of those that a client does not choose freely; a new one has to be put where it belongs."""
    numbers = {name for name, kind in RecordLine.__annotations__.items() if "float" in kind or "int" in kind}
    free = {"forebay", "timestamp", "time", "samples", "retry", "limit_tokens", "attempts"}
    assert numbers == free | {*traces._RECORD_SECONDS, *traces._RECORD_TOKENS}


def test_pipes_are_not_read_twice(tmp_path: Path) -> None:
    """The second time half of it would be gone, or nobody would write."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (format_of, lambda path: list(read_records(path))):
        with pytest.raises(
            TraceError, match="is a pipe or a device, and this is read twice: put it into a file"
        ):
            read(pipe)


def test_names_are_cut(tmp_path: Path) -> None:
    """A window of rows is held: what a client calls itself must not fill the memory."""
    [row] = read_trace(
        written(tmp_path, json.dumps(RECORDED | {"tenant": "a" * 5000, "session": "b" * 5000}))
    )
    assert ("a" * 256, "b" * 256) == (row.tenant, row.session)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_trace_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes
) -> None:
    """Whatever a file holds, nothing else is raised."""
    for start in (b"", COMMON.encode(), b'{"timestamp":1,"input_length":1,"output_length":1}\n'):
        file = written(tmp_path_factory.mktemp("trace"), start + noise)
        with contextlib.suppress(TraceError):
            list(read_trace(file))


def test_a_line_without_an_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one endless line is not read into memory."""
    monkeypatch.setattr(traces, "_MAX_LINE", 1000)
    with pytest.raises(TraceError, match="line 1: is longer than 1000 characters"):
        list(read_trace(written(tmp_path, "x" * 5000)))
