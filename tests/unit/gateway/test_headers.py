from __future__ import annotations

import pytest

from forebay.config.header_names import TAKEN_HEADERS
from forebay.gateway.asks import BadRequest
from forebay.gateway.headers import _KNOWN, Claims, answer_headers, claims_of, read_claims, safe_id
from forebay.gateway.identity import Access
from forebay.http.message import RequestHead

ACCESS = Access()


def claims(*headers: tuple[bytes, bytes]) -> Claims:
    """Claims of a request with these headers."""
    return read_claims(list(headers), ACCESS)


def test_hop_by_hop_and_framing_are_not_forwarded() -> None:
    """Only end-to-end headers reach the engine, in their order and with their values untouched."""
    read = claims(
        (b"host", b"gateway"),
        (b"authorization", b"Bearer x"),
        (b"connection", b"keep-alive, X-Private"),
        (b"x-private", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"content-length", b"3"),
        (b"expect", b"100-continue"),
        (b"proxy-authorization", b"secret"),
        (b"accept-encoding", b"gzip"),
        (b"x-forebay-tenant", b"acme"),
        (b"x-forebay-anything", b"1"),
        (b"content-type", b"application/json"),
    )
    assert read.forward == b"authorization: Bearer x\r\ncontent-type: application/json\r\n"


def test_claims_of_others_go_on() -> None:
    """Headers that other systems also read are both used and forwarded."""
    read = claims((b"x-stainless-retry-count", b"2"), (b"x-gateway-inference-objective", b"batch"))
    assert (2, "batch") == (read.retry_count, read.class_name)
    assert b"x-stainless-retry-count: 2\r\n" in read.forward
    assert b"objective" not in read.forward  # decided here: nobody claims a class at what is behind us


@pytest.mark.parametrize(
    ("value", "count"),
    [(b"2", 2), (b"007", 7), (b"true", 1), (b"0", 0), (b"", 0), (b"-1", 1), (b"9" * 5000, 9999)],
)
def test_one_more_header_may_say_which_retry_it_is(value: bytes, count: int) -> None:
    """R12: the larger of both counts, and the header goes on unless it is one of ours."""
    access = Access(retry_header="x-retry")
    read = read_claims([(b"x-retry", value)], access)
    assert count == read.retry_count
    assert b"x-retry: " + value + b"\r\n" == read.forward
    both = [(b"x-retry", value), (b"x-stainless-retry-count", b"3")]
    assert max(count, 3) == read_claims(both, access).retry_count
    assert 0 == claims((b"x-retry", value)).retry_count
    assert b"" == read_claims([(b"x-forebay-retry", value)], Access(retry_header="x-forebay-retry")).forward


def test_a_header_with_a_meaning_of_its_own_cannot_be_that_one() -> None:
    """The configuration refuses them by this list."""
    assert {name.decode() for name in _KNOWN} <= TAKEN_HEADERS


def test_a_class_is_one_of_those_configured() -> None:
    """A class that does not exist is refused, naming those that do."""
    assert claims((b"x-forebay-class", b"realtime")).class_name == "realtime"
    with pytest.raises(BadRequest, match="realtime, standard, batch"):
        claims((b"x-forebay-class", b"gold"))


def test_objectives_of_other_systems_may_be_unknown() -> None:
    """An objective's name that means nothing here is not an error, and our own header wins."""
    assert claims((b"x-llm-d-inference-objective", b"gold")).class_name == "standard"
    read = claims((b"x-forebay-class", b"realtime"), (b"x-llm-d-inference-objective", b"batch"))
    assert read.class_name == "realtime"


def test_deadlines_only_tighten() -> None:
    """Of several deadlines the earliest counts, from arrival."""
    read = claims((b"x-forebay-deadline-ms", b"1500"), (b"x-slo-ttft-ms", b"800"))
    assert read.first_token_within_s == pytest.approx(0.8)
    assert b"x-forebay" not in read.forward


@pytest.mark.parametrize("value", [b"", b"soon", b"-5", b"0", b"nan", b"inf"])
def test_a_stated_deadline_must_make_sense(value: bytes) -> None:
    """A deadline header with a value that cannot be meant is refused under its name."""
    with pytest.raises(BadRequest) as caught:
        claims((b"x-forebay-deadline-ms", value))
    assert caught.value.param == "x-forebay-deadline-ms"


def test_client_timeouts_bound_patience() -> None:
    """SDK timeouts are seconds less 5 %, Envoy's is milliseconds; words in them say nothing."""
    assert claims((b"x-stainless-timeout", b"600")).patience_s == pytest.approx(570.0)
    assert claims((b"x-stainless-read-timeout", b"10")).patience_s == pytest.approx(9.5)
    assert claims((b"x-envoy-expected-rq-timeout-ms", b"2000")).patience_s == pytest.approx(2.0)
    assert claims((b"x-stainless-timeout", b"NOT_GIVEN")).patience_s is None
    assert claims((b"x-stainless-timeout", b"600")).first_token_within_s is None


def test_request_ids_are_made_harmless() -> None:
    """At most 128 characters survive, and none that could break a log line or a header."""
    read = claims((b"x-request-id", b"ab c\xc3\xa9\t<d>" + b"x" * 500))
    assert read.request_id is not None
    assert read.request_id.startswith(b"abcd")
    assert len(read.request_id) <= 128
    assert b"x-request-id: %b\r\n" % read.request_id in read.forward
    assert claims((b"x-request-id", b"\xff\xff")).request_id is None
    assert safe_id(b"req-1_2.3:4") == b"req-1_2.3:4"


def test_explanations_are_asked_for() -> None:
    """`x-forebay-explain: 1` asks for the decision; 0 does not."""
    assert claims((b"x-forebay-explain", b"1")).explain
    assert not claims((b"x-forebay-explain", b"0")).explain
    assert claims((b"x-forebay-session", b"s-1")).session == "s-1"


def test_answers_keep_the_engines_headers() -> None:
    """Framing and hop-by-hop headers are said anew, ours replace the engine's of the same name, the rest passes."""
    engine = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"30"),
        (b"date", b"then"),
        (b"content-length", b"2"),
        (b"connection", b"keep-alive"),
        (b"x-request-id", b"engine"),
        (b"x-queue-time", b"9"),
    ]
    own = [(b"x-forebay-id", b"1"), (b"x-request-id", b"client")]
    assert answer_headers(engine, own, sse=False) == [
        (b"content-type", b"application/json"),
        (b"retry-after", b"30"),
        (b"x-forebay-id", b"1"),
        (b"x-request-id", b"client"),
    ]


def test_streams_are_marked_against_buffering() -> None:
    """Proxies in front are told not to buffer, unless the engine said something about that itself."""
    marked = answer_headers([(b"content-type", b"text/event-stream")], [], sse=True)
    assert {(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")} <= set(marked)
    own_word = answer_headers([(b"cache-control", b"private"), (b"x-accel-buffering", b"no")], [], sse=True)
    assert own_word == [(b"cache-control", b"private"), (b"x-accel-buffering", b"no")]


def test_claims_are_read_once_for_each_head() -> None:
    """Claims are kept with the head they were read from, until other classes are configured."""
    fields = [(b"x-forebay-class", b"batch")]
    head = RequestHead(b"POST", b"/", "/", b"", fields, 1, True, 0, False, False)
    read = claims_of(head, ACCESS, None)
    assert claims_of(head, ACCESS, None) is read
    assert read.class_name == "batch"
    with pytest.raises(BadRequest):
        claims_of(head, Access(("realtime",), "realtime"), None)
