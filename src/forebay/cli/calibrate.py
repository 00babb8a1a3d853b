"""`forebay calibrate`: measures a live engine and writes its profile. Parses, asks, prints."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.cli.printing import plain

if TYPE_CHECKING:
    from forebay.load.generator import Target
    from forebay.runtime.calibration import Calibration, Facts

_EPILOG: Final = """
\b
Try it:
  forebay engine --port 8000                 # or a real engine
  forebay calibrate --target http://127.0.0.1:8000 -o measured.json
  forebay serve --upstream http://127.0.0.1:8000 --profile measured.json
  forebay size --profile measured.json --prompt-tokens 800 --output-tokens 200
"""


@click.command(
    "calibrate",
    epilog=_EPILOG,
    short_help="Measure a live engine and write its profile.",
    context_settings={"show_default": True, "max_content_width": 110},
)
@click.option(
    "--target", "url", required=True, metavar="URL", help="The engine itself, not a gateway before it."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the profile.  [default: stdout]",
    show_default=False,
)
@click.option("--max-concurrency", type=click.IntRange(4, 512), default=32, help="Most requests at once.")
@click.option("--yes", is_flag=True, help="Do not ask before load is put on the engine.")
@click.option(
    "--model", metavar="NAME", help="Its model.  [default: the first that it lists]", show_default=False
)
@click.option("--gpu", default="unknown", metavar="NAME", help="Kind of GPU, for people.")
@click.option("--gpus", type=click.IntRange(1, 4096), default=1, help="GPUs of the engine (tensor parallel).")
@click.option("--kv-tokens", type=click.IntRange(64), help="KV cache, where the engine does not say.")
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(64),
    help="Longest prompt plus answer, where it does not say.",
)
@click.option("--max-num-seqs", type=click.IntRange(1), help="What it runs at once, if you know.")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(16), help="What one step computes at most, if you know."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout: profile, errors, knee."
)
def command(**options: Any) -> None:
    """Measure a live engine and write its profile.

    A short load test (a minute to a few minutes): lone prompts, then streams side by side, few to many. From some of
    the times the law of a step is fitted, and it is held against the others: that error is stated. Load is bounded by
    --max-concurrency and by six tenths of the KV cache, but it does slow down whatever else the engine does: give it
    one that is idle.
    """
    import uvloop

    from forebay.load.generator import Target, WrongTarget
    from forebay.runtime.calibration import CannotCalibrate, calibrate, look_at

    try:
        target = Target.parse(options["url"])
    except WrongTarget as error:
        raise click.BadParameter(str(error), param_hint="--target") from error

    async def facts_of() -> Facts:
        return await look_at(
            target,
            kv_tokens=options["kv_tokens"],
            context_tokens=options["context_tokens"],
            model=options["model"],
        )

    try:
        facts = uvloop.run(facts_of())
        _ask(facts, target, options)
        result = uvloop.run(
            calibrate(
                target,
                facts,
                most=options["max_concurrency"],
                chunk_tokens=options["max_num_batched_tokens"],
                progress=lambda what: click.echo(f"measuring {what}", err=True),
            )
        )
    except CannotCalibrate as error:
        raise click.ClickException(plain(str(error))) from error
    _write(result, options)


def _ask(facts: Facts, target: Target, options: dict[str, Any]) -> None:
    """Refuse what would be measured wrong, and ask before load is put on what may be serving people."""
    if facts.busy:
        raise click.ClickException(
            f"the engine has {facts.busy} request{'s' if facts.busy > 1 else ''} of others: what it takes for them "
            "would be measured as ours. Take it out of service first"
        )
    if options["yes"]:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this puts load on the engine, and there is nobody to ask: say --yes")
    click.confirm(
        f"Up to {options['max_concurrency']} requests at once go to {target.host}:{target.port} "
        f"({plain(facts.model)}), "
        "for a minute or two. Others there are slowed down. Go on?",
        abort=True,
        err=True,
    )


def _write(result: Calibration, options: dict[str, Any]) -> None:
    from forebay.runtime.calibration import mean_error

    profile = _profile(result, options)
    held = result.held_out_errors
    worst = max(map(abs, held), default=0.0)
    document = {
        "profile": profile,
        "held_out_error_mean": round(mean_error(held), 5),
        "held_out_error_worst": round(worst, 5),
        "held_out": len(held),
        "knee": result.knee,
        "overhead_ms": round(result.law.overhead_ms, 3),
        "most_at_once": result.most,
    }
    if options["output"] is not None:
        try:
            options["output"].write_text(json.dumps(profile, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{options['output']}: {error.strerror}") from error
        click.echo(f"profile written to {options['output']}", err=True)
    click.echo(
        f"on {len(held)} times that it was not fitted to, the law is {mean_error(held):.1%} off on average, "
        f"{worst:.1%} at worst",
        err=True,
    )
    click.echo(
        f"from {result.knee} sequences on, one more adds less than half of what the first gave; measured up to "
        f"{result.most}",
        err=True,
    )
    if result.max_num_seqs is None and options["max_num_seqs"] is None:
        click.echo(
            f"max_num_seqs was not reached and is written as {profile['max_num_seqs']}: say --max-num-seqs, or raise "
            "--max-concurrency",
            err=True,
        )
    if options["as_json"]:
        click.echo(json.dumps(document, indent=2))
    elif options["output"] is None:
        click.echo(json.dumps(profile, indent=2))


def _profile(result: Calibration, options: dict[str, Any]) -> dict[str, Any]:
    """In the form of a profile's file."""
    from forebay.runtime.calibration import mean_error

    law, facts = result.law, result.facts
    seqs = options["max_num_seqs"] or result.max_num_seqs or max(256, result.most)
    names = ("t0", "s_lo", "s_hi", "c_kv", "f_attn", "g_seq")
    step = {"n0": law.n0, "h0": 0.0, "h1": 0.0} | {name: float(f"{getattr(law, name):.5g}") for name in names}
    held = result.held_out_errors
    return {
        "name": options["output"].stem if options["output"] else "measured",
        "model": facts.model,
        "gpu": options["gpu"],
        "gpus": options["gpus"],
        "weights": "unknown",
        "kv_dtype": "unknown",
        "step_ms": step,
        "kv_tokens": facts.kv_tokens,
        "block_size": facts.block_size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(law.chunk_tokens, seqs),
        "context_tokens": facts.context_tokens,
        "source": f"measured by forebay calibrate on {datetime.now(UTC):%Y-%m-%d}, up to {result.most} at once; on "
        f"{len(held)} times held out {100 * mean_error(held):.1f} % off on average",
        "fit_error_pct": round(100 * mean_error(result.fit_errors), 2),
    }
