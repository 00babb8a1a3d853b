"""Claims about what is seen in a stream of events while it passes."""

from __future__ import annotations

import pytest

from forebay.http.sse import EVENT_BYTES, SseScanner

CHUNK = b'{"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}'
USAGE = b'{"prompt_tokens":10,"completion_tokens":64,"total_tokens":74}'


def event(data: bytes, end: bytes = b"\n") -> bytes:
    """One event in the usual shape."""
    return b"data: " + data + end + end


def scan(*pieces: bytes) -> SseScanner:
    """A scanner that has seen some pieces and their end."""
    scanner = SseScanner()
    counted = sum([scanner.feed(piece) for piece in pieces]) + scanner.end()
    assert counted == scanner.data_events
    return scanner


def usage_event(usage: bytes, choices: bytes = b"[]") -> bytes:
    """A last chunk that carries usage."""
    return event(b'{"id":"","choices":' + choices + b',"usage":' + usage + b"}")


def test_events_are_counted_as_they_complete() -> None:
    """Each piece reports the data events that it completed; `[DONE]` is an end and not an event."""
    scanner = SseScanner()
    assert scanner.feed(event(CHUNK)) == 1
    assert scanner.feed(event(CHUNK) + event(CHUNK)) == 2
    assert scanner.feed(b"data: {") == 0
    assert scanner.feed(b"}\n") == 0
    assert scanner.feed(b"\n") == 1
    done = scanner.done
    assert scanner.feed(event(b"[DONE]")) == 0
    assert (False, True) == (done, scanner.done)
    assert (4, CHUNK) == (scanner.data_events, scanner.first_event)
    assert scanner.feed(b"") == 0


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]"])
def test_f015_end_is_seen_with_and_without_blank(done: bytes) -> None:
    """`[DONE]` is recognised with and without a blank before it and an empty line after it."""
    assert scan(event(CHUNK), done).done


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_f015_every_line_end_in_every_cut(line_end: bytes, size: int) -> None:
    """LF, CRLF and lone CR give the same events, usage and end, also when a CRLF is cut in two."""
    stream = b"".join(
        [
            event(CHUNK, line_end),
            b"data:" + CHUNK + line_end + line_end,
            b'data: {"choices":[],' + line_end + b'data: "usage":' + USAGE + b"}" + line_end + line_end,
            event(b"[DONE]", line_end),
        ]
    )
    scanner = scan(*[stream[at : at + size] for at in range(0, len(stream), size)])
    assert (3, USAGE, True) == (scanner.data_events, scanner.usage, scanner.done)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=repr)
def test_f015_event_is_seen_at_its_empty_line(line_end: bytes) -> None:
    """An event completes with the piece that ends its empty line, not with the next one."""
    scanner = SseScanner()
    assert scanner.feed(event(CHUNK, line_end)) == 1
    assert scanner.feed(event(CHUNK, line_end)) == 1


def test_f015_last_event_may_lack_its_empty_line() -> None:
    """Usage in a last event that nothing follows is found at the end of the stream."""
    scanner = SseScanner()
    scanner.feed(event(CHUNK) + usage_event(USAGE).rstrip())
    assert (1, None) == (scanner.data_events, scanner.usage)
    assert scanner.end() == 1
    assert scanner.end() == 0
    assert (2, USAGE) == (scanner.data_events, scanner.usage)


def test_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """A byte order mark at the start is skipped, cut or whole; anywhere else it is an unknown field."""
    stream = b"\xef\xbb\xbf" + event(CHUNK)
    assert scan(stream).data_events == 1
    assert scan(*[stream[at : at + 1] for at in range(len(stream))]).data_events == 1
    assert scan(event(CHUNK), stream).data_events == 1


def test_f014_characters_cut_at_every_offset() -> None:
    """Characters of three and four bytes, cut anywhere, change no count and lose no usage."""
    text = "水\U0001f600".encode()
    stream = event(b'{"choices":[{"delta":{"content":"' + text + b'"}}]}')
    stream += usage_event(b'{"completion_tokens":2,"note":"' + text + b'"}')
    for at in range(1, len(stream)):
        scanner = scan(stream[:at], stream[at:])
        assert scanner.data_events == 2
        assert scanner.usage == b'{"completion_tokens":2,"note":"' + text + b'"}'


def test_f017_long_line_is_counted_and_small_events_after_it_are_seen() -> None:
    """A 5 MB event counts once, however it is cut; usage after it is found."""
    stream = event(b'{"content":"' + b"x" * 5_000_000 + b'"}') + usage_event(USAGE)
    for size in (65536, 100_000, len(stream)):
        scanner = scan(*[stream[at : at + size] for at in range(0, len(stream), size)])
        assert (2, USAGE) == (scanner.data_events, scanner.usage)
        assert scanner.first_event is not None
        assert len(scanner.first_event) <= EVENT_BYTES


def test_f017_endless_line_is_bounded() -> None:
    """A line that never ends is passed over: what is held stays below the bound."""
    scanner = SseScanner()
    piece = b"x" * 65536
    scanner.feed(b"data: ")
    for _ in range(200):
        scanner.feed(piece)
        assert scanner.held_bytes <= EVENT_BYTES
    assert scanner.data_events == 0
    assert scanner.end() == 1


def test_long_comment_is_no_event() -> None:
    """An endless comment is passed over as well, and is not counted; the event after it is."""
    stream = b": " + b"x" * 1_000_000 + b"\n\n" + event(CHUNK)
    assert scan(*[stream[at : at + 50_000] for at in range(0, len(stream), 50_000)]).data_events == 1
    assert scan(stream).data_events == 1


@pytest.mark.parametrize(
    "odd",
    [
        b": ping 2\n\n",
        b":\n\n",
        b"event: ping\n\n",
        b"retry: 100\n\n",
        b"id: 7\n\n",
        b"unknown: field\n\n",
        b"no colon\n\n",
        b"data\n\n",
        b"data:\n\n",
        b"data: \n\n",
        b"datas: x\n\n",
        b" data: x\n\n",
        b"\n\n\n",
    ],
    ids=repr,
)
def test_f018_comments_and_odd_fields_are_no_events(odd: bytes) -> None:
    """Comments, other fields and events without data count for nothing, before and between events."""
    scanner = scan(odd, event(CHUNK) + odd, odd, event(CHUNK))
    assert (2, CHUNK) == (scanner.data_events, scanner.first_event)


@pytest.mark.parametrize("choices", [b"[]", b"null", b"{}"])
def test_f018_odd_choices_are_events(choices: bytes) -> None:
    """Chunks with empty, null or missing choices count and break nothing."""
    assert (
        scan(event(b'{"choices":' + choices + b"}"), event(b"{}"), event(b"[]"), event(b"7")).data_events == 4
    )


def test_f018_null_usage_is_none_and_zero_usage_is_usage() -> None:
    """Usage null or missing is none; usage of all zeros is usage."""
    null = usage_event(b"null")
    assert (
        scan(event(CHUNK), null, null.replace(b":null", b": null"), null.replace(b":null", b" :\tnull")).usage
        is None
    )
    zero = b'{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}'
    assert scan(null, usage_event(zero), null).usage == zero


def test_f020_cumulative_usage_is_the_last_and_never_falls() -> None:
    """Of running totals the last counts; a total that falls is ignored."""

    def total(count: int) -> bytes:
        return b'{"completion_tokens":%d}' % count

    assert scan(*[usage_event(total(count)) for count in range(1, 100, 2)]).usage == total(99)
    assert scan(*[usage_event(total(count)) for count in (5, 9, 3, 7)]).usage == total(9)


def test_f020_nested_usage_is_found() -> None:
    """Usage inside Anthropic's message and OpenAI's response objects counts as well."""
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"output_tokens":1}}}\n\n'
    )
    delta = (
        b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}\n\n'
    )
    scanner = scan(start)
    assert (b'{"output_tokens":1}', False) == (scanner.usage, scanner.finish_reason_seen)
    scanner = scan(start, delta)
    assert (b'{"output_tokens":15}', True) == (scanner.usage, scanner.finish_reason_seen)
    completed = event(b'{"type":"response.completed","response":{"id":"r","usage":{"output_tokens":4}}}')
    scanner = scan(completed)
    assert (b'{"output_tokens":4}', True) == (scanner.usage, scanner.finish_reason_seen)


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"content":"\\"usage\\":{\\"completion_tokens\\":9}"}}]}',
        b'{"choices":[{"delta":{"content":"usage"}}],"name":"usage"}',
        b'{"choices":[{"delta":{"usage":{"completion_tokens":9}}}]}',
        b'{"usage":7}',
        b'{"usage":[1]}',
        b'{"usage":"x"}',
        b'{"usage":{"completion_tokens":9}',
        b'["usage"]',
        b'"usage"',
        b'{"usage":' + b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:50]),
)
def test_what_only_looks_like_usage_is_none(data: bytes) -> None:
    """Text about usage, usage of a wrong type, in a wrong place or in broken JSON is not usage."""
    scanner = scan(event(data))
    assert (1, None) == (scanner.data_events, scanner.usage)


def test_odd_counts_do_not_hide_usage() -> None:
    """Usage whose counts are of no known type is still the usage."""
    odd = b'{"completion_tokens":"many"}'
    assert scan(usage_event(odd)).usage == odd
    assert scan(usage_event(b'{"total_tokens":5}')).usage == b'{"total_tokens":5}'
    assert scan(usage_event(b"{}")).usage == b"{}"


@pytest.mark.parametrize("blank", [b"", b" ", b"  "])
def test_finish_reason_is_seen(blank: bytes) -> None:
    """A finish reason is seen in any choice once it is a string, with any blanks."""
    null = b'{"finish_reason":' + blank + b"null}"
    stop = b'{"finish_reason":' + blank + b'"stop"}'
    assert not scan(event(b'{"choices":[' + null + b"]}")).finish_reason_seen
    assert scan(event(b'{"choices":[' + null + b"," + stop + b"]}")).finish_reason_seen
    assert not scan(event(b'{"choices":[],"other_reason":"x"}')).finish_reason_seen
    assert not scan(event(b'{"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}')).finish_reason_seen


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"Context size has been exceeded.","code":500}}',
        b'{"error": {"message":"m","type":"ServiceUnavailableError","param":null,"code":503}}',
        b'{"object":"error","message":"m","type":"t","param":null,"code":503}',
        b'{"type":"error","error":{"type":"overloaded_error"}}',
        b'{"error":"text"}',
    ],
)
def test_f021_error_events_are_recognised(data: bytes) -> None:
    """An error object is told from an answer, nested or flat, first or later, on the first one."""
    scanner = scan(event(data), event(b'{"error":"second"}'), event(b"[DONE]"))
    assert (data, data, 2, True) == (scanner.error, scanner.first_event, scanner.data_events, scanner.done)
    assert scan(event(CHUNK), event(data)).error == data


@pytest.mark.parametrize(
    "data",
    [
        CHUNK,
        b'{"error":null,"choices":[]}',
        b'{"choices":[{"delta":{"content":"\\"error\\""}}]}',
        b'{"choices":[{"error":{"a":1}}]}',
        b'{"object":"chat","name":"error"}',
        b'["error"]',
        b'{"error"',
    ],
)
def test_other_events_are_no_errors(data: bytes) -> None:
    """An error that is null, nested, quoted or unreadable is not an error event."""
    assert scan(event(data)).error is None


def test_a_count_of_any_length_is_a_count() -> None:
    """A usage with a number that no float can hold is passed on like any other and breaks nothing."""
    scanner = scan(event(b'{"usage":{"completion_tokens":1' + b"0" * 400 + b"}}"), event(b"[DONE]"))
    assert scanner.usage is not None
    assert scanner.done


def test_an_aborted_answer_is_told_apart() -> None:
    """The finish reason `abort` is an engine that gave up; a stop string of that text, and other reasons, are not."""
    assert scan(event(b'{"choices":[{"finish_reason":"abort","stop_reason":null}]}')).aborted
    assert not scan(event(b'{"choices":[{"finish_reason":"stop","stop_reason":"abort"}]}')).aborted
    assert not scan(event(b'{"delta":{"stop_reason":"abort"}}')).aborted
    assert not scan(event(b'{"choices":[{"finish_reason":"abortion"}]}')).aborted
    assert not scan(event(b'{"choices":[{"finish_reason":null,"text":"\\"abort\\""}]}')).aborted


def fed(*events: str, scanner: SseScanner | None = None) -> SseScanner:
    """A scanner that has seen these, each as the data of an event with a name."""
    scanner = scanner or SseScanner()
    for event in events:
        scanner.feed(b"event: x\ndata: " + event.encode() + b"\n\n")
    return scanner


def test_messages_say_their_end() -> None:
    """A stream of messages ends with `message_stop`, which is no chunk of it; its first usage has the prompt."""
    scanner = fed(
        '{"type":"message_start","message":{"usage":{"input_tokens":14,"output_tokens":0}}}',
        '{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":4}}',
    )
    assert (False, True, 2) == (scanner.done, scanner.finish_reason_seen, scanner.data_events)
    assert (b'{"input_tokens":14,"output_tokens":0}', b'{"output_tokens":4}') == (
        scanner.first_usage,
        scanner.usage,
    )
    fed('{"type":"message_stop"}', scanner=scanner)
    assert (True, 2) == (scanner.done, scanner.data_events)


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_responses_say_their_end(end: str) -> None:
    """A response is over when it is complete or cut off; what came before is no end."""
    scanner = fed(
        '{"type":"response.created","response":{"usage":null,"error":null}}',
        '{"type":"response.output_text.delta","delta":"x"}',
    )
    assert (False, False, None) == (scanner.done, scanner.finish_reason_seen, scanner.error)
    usage = '"usage":{"input_tokens":15,"output_tokens":4}'
    fed(f'{{"response":{{"error":null,{usage}}},"type":"response.{end}"}}', scanner=scanner)
    assert (True, True, 2, None) == (
        scanner.done,
        scanner.finish_reason_seen,
        scanner.data_events,
        scanner.error,
    )


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"response.failed","response":{"usage":null,"error":{"code":"server_error"}}}',
        '{"type":"error","code":"server_error","message":"x"}',
        '{"type":"error","error":{"type":"overloaded_error"}}',
        '{"error":"x","error_type":"generation"}',
    ],
)
def test_errors_of_all_apis_are_seen(event: str) -> None:
    """An error is known wherever an API puts it."""
    assert event.encode() == fed('{"type":"x"}', event).error


def test_engines_own_ends() -> None:
    """llama.cpp says `stop_type`, SGLang a reason that is an object; of several answers every end is kept."""
    llamacpp = SseScanner(b'_type"', all_ends=True)
    fed('{"content":"x","stop":false}', scanner=llamacpp)
    assert not llamacpp.finish_reason_seen
    fed('{"index":0,"stop_type":"limit"}', '{"index":1,"stop_type":"eos"}', scanner=llamacpp)
    assert [b'{"index":0,"stop_type":"limit"}', b'{"index":1,"stop_type":"eos"}'] == llamacpp.ends
    sglang = fed('{"meta_info":{"finish_reason":null}}', '{"meta_info":{"finish_reason":{"type":"stop"}}}')
    assert sglang.finish_reason_seen
    assert len(sglang.ends) == 1


def test_what_comes_before_an_answer_is_none_of_it() -> None:
    """Events that an engine sends before it has begun are not counted, and pings never are."""
    scanner = SseScanner(preludes=(b'"response.created"',))
    fed('{"type":"response.created","response":{}}', '{"type": "ping"}', scanner=scanner)
    assert (0, None) == (scanner.data_events, scanner.first_event)
    fed(
        '{"type":"delta","delta":"\\"response.created\\""}',
        '{"type":"x","y":"response.created"}',
        scanner=scanner,
    )
    assert scanner.data_events == 2
    assert 1 == fed('{"type":"response.created","response":{}}').data_events


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        (b"", False),
        (b"data: [DON", False),
        (b"data: [DONE]", True),
        (b"data:[DONE]\n", True),
        (b'data: {"a": 1}', False),
        (b'data: {"a": 1}\n', True),
        (b"data: [DONE]\n\n", False),
    ],
)
def test_an_event_that_lacks_only_its_empty_line_is_told_from_a_part(held: bytes, whole: bool) -> None:
    """Behind a whole line an event may be over; inside of one it is not, unless it is the mark of the end."""
    scanner = SseScanner()
    scanner.feed(event(CHUNK))
    scanner.feed(held)
    assert whole is scanner.lacks_only_its_empty_line()
