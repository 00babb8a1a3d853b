"""`forebay size`: queueing and capacity arithmetic, and settings for three layers. Parses, prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.cli.profiles import print_profiles
from forebay.cli.size_report import document, report

if TYPE_CHECKING:
    from forebay.admission.settings import SpeedLaw
    from forebay.sizing.batching import Engine, Workload
    from forebay.sizing.plan import Plan

_EPILOG: Final = """
\b
Try it:
  forebay size --profile llama3-8b-h100x1-bf16 --prompt-tokens 1000 --output-tokens 250 --rate 20
  forebay size --model llama3-70b --gpu h100 --tensor-parallel 4 --kv-dtype fp8
  forebay size --model ./config.json --gpu a100 --mig 3g.40gb --prompt-tokens 800 --output-tokens 200
  forebay size --profile measured.json --trace requests.jsonl --policy latency
  forebay size --profile llama3-8b-h100x1-bf16 --only forebay | forebay check -

\b
Where the figures come from, and where they lie: docs/explanation/sizing.md
"""


@click.command(
    "size",
    epilog=_EPILOG,
    short_help="Work out capacity, queues and settings for edge, Forebay and engine.",
    context_settings={"show_default": True, "max_content_width": 110},
)
@click.option(
    "--profile",
    "profile_name",
    metavar="NAME|FILE",
    help="The engine, measured: a profile. `--profile list` prints those that come with Forebay.",
)
@click.option(
    "--model",
    metavar="NAME|FILE",
    help="The engine, estimated: a model by name, or its config.json. With --gpu.",
)
@click.option("--gpu", metavar="NAME", help="GPU that the model runs on, as in h100.")
@click.option("--mig", metavar="SLICE", help="MIG slice of that GPU, as in 3g.40gb.")
@click.option(
    "--tensor-parallel", type=click.IntRange(1, 64), default=1, help="GPUs that one engine is spread over."
)
@click.option(
    "--weights", default="bf16", metavar="FORMAT", help="Number format of the weights: bf16, fp8, int4, …"
)
@click.option(
    "--kv-dtype", default="bf16", metavar="FORMAT", help="Number format of the KV cache: bf16, fp8."
)
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    help="Part of the GPU's memory that the engine may use.",
)
@click.option("--trace", "trace", help="Lengths and rate from a trace or record, or synthetic:NAME.")
@click.option("--limit", type=click.IntRange(1), default=None, help="Rows of the trace to read.  [default: 200,000]",
              show_default=False)  # fmt: skip
@click.option(
    "--prompt-tokens", type=click.FloatRange(1, 1e7), help="Mean prompt.  [default: 1000]", show_default=False
)
@click.option(
    "--output-tokens", type=click.FloatRange(1, 1e6), help="Mean answer.  [default: 250]", show_default=False
)
@click.option(
    "--spread",
    type=click.FloatRange(0, 3),
    default=0.8,
    help="How unlike lengths are: standard deviation of their logarithm. 0: all alike.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Requests per second.  [default: the trace's, or what the endpoints can be planned for]",
    show_default=False,
)
@click.option(
    "--endpoints",
    type=click.IntRange(1, 100_000),
    help="Engines.  [default: what the rate takes, or 1]",
    show_default=False,
)
@click.option("--policy", type=click.Choice(["latency", "balanced", "throughput"]), default="balanced",
              help="Utilisation to plan for: 70, 85 or 95 %.")  # fmt: skip
@click.option("--ttft", metavar="TIME", help="First token of the most important class.  [default: 1.5s]",
              show_default=False)  # fmt: skip
@click.option("--tpot", metavar="TIME", help="Time per further token of that class.  [default: 80ms]",
              show_default=False)  # fmt: skip
@click.option(
    "--edge-factor",
    type=click.FloatRange(0.01, 100),
    default=1.2,
    help="Refill of the edge's bucket over capacity. 0.7 where there is nothing behind it.",
)
@click.option(
    "--only", type=click.Choice(["edge", "forebay", "engine", "keda"]), help="Print these settings alone."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(**options: Any) -> None:
    """Work out capacity, queues and settings for edge, Forebay and engine.

    From an engine (a measured profile, or a model's shape and a GPU), lengths of requests (means, or a trace) and a
    rate it works out what one engine can do, how many are needed, what runs at once, how long one waits, and how deep
    queues may be; and prints settings that fit together. Nothing is sent anywhere.
    """
    from forebay.sizing.errors import SizingError

    if options["profile_name"] == "list":
        print_profiles()
        return
    try:
        plan, texts, notes = _work_out(options)
    except SizingError as error:
        raise click.UsageError(str(error)) from error
    if options["as_json"]:
        click.echo(json.dumps(document(plan, texts, notes), indent=2))
    elif options["only"] is not None:
        click.echo(texts[options["only"]], nl=False)
    else:
        for note in notes:
            click.echo(f"note: {note}", err=True)
        click.echo("\n".join(report(plan)))
        for title, text in texts.items():
            click.echo(f"\n--- {title} " + "-" * (74 - len(title)))
            click.echo(text, nl=False)


def _work_out(options: dict[str, Any]) -> tuple[Plan, dict[str, str], list[str]]:
    """The plan, its settings by layer, and what should be said about them."""
    from forebay.runtime.sizing import usual_classes
    from forebay.sizing.layers import edge_yaml, engine_flags, forebay_yaml, keda_yaml
    from forebay.sizing.plan import make_plan

    engine, law, profile = _engine(options)
    workload, rate, notes = _workload(options, engine, law)
    plan = make_plan(
        engine,
        workload,
        usual_classes(
            ttft_s=_duration("--ttft", options["ttft"]), tpot_s=_duration("--tpot", options["tpot"])
        ),
        rate_rps=rate,
        endpoints=options["endpoints"],
        policy=options["policy"],
        edge_factor=options["edge_factor"],
    )
    if profile is None:
        notes.append(
            "speed is estimated from data sheets, within about 30 %; measure it with `forebay calibrate`"
        )
    if plan.load > 1:
        notes.append(
            f"{plan.endpoints} endpoint{'s' if plan.endpoints > 1 else ''} cannot serve {plan.rate_rps:.3g} requests/s "
            f"of these: {plan.load:.0%} of capacity; the rest is refused"
        )
    texts = {
        "edge": edge_yaml(plan),
        "forebay": forebay_yaml(plan, profile=profile),
        "engine": engine_flags(
            plan, utilization=options["gpu_memory_utilization"], kv_dtype=options["kv_dtype"]
        ),
        "keda": keda_yaml(plan),
    }
    return plan, texts, notes


def _engine(options: dict[str, Any]) -> tuple[Engine, SpeedLaw, str | None]:
    """The engine, its law, and the profile that it came from."""
    from forebay.runtime.sizing import engine_of_profile, law_of_engine, model_shape
    from forebay.sizing.gpus import find_gpu
    from forebay.sizing.roofline import roofline_engine

    name, model, gpu = options["profile_name"], options["model"], options["gpu"]
    if (name is None) == (model is None):
        raise click.UsageError("say which engine: --profile NAME|FILE, or --model NAME|FILE with --gpu NAME")
    if name is not None:
        given = [key for key in ("gpu", "mig") if options[key] is not None]
        if given:
            raise click.UsageError(f"--{given[0]} belongs to --model; a profile has its GPU")
        engine, law = engine_of_profile(name)
        return engine, law, name
    if gpu is None:
        raise click.UsageError("--model needs the GPU that it runs on: --gpu NAME, as in --gpu h100")
    if options["mig"] is not None and options["tensor_parallel"] > 1:
        raise click.UsageError("an engine on a MIG slice cannot be spread over several: --tensor-parallel 1")
    engine = roofline_engine(
        model_shape(model),
        find_gpu(gpu, options["mig"]),
        weights=options["weights"],
        kv_dtype=options["kv_dtype"],
        tensor_parallel=options["tensor_parallel"],
        utilization=options["gpu_memory_utilization"],
    )
    return engine, law_of_engine(engine), None


def _workload(
    options: dict[str, Any], engine: Engine, law: SpeedLaw
) -> tuple[Workload, float | None, list[str]]:
    """Lengths, the rate, and what should be said about them."""
    from forebay.runtime.sizing import given_workload, trace_workload

    prompt, output, rate = options["prompt_tokens"], options["output_tokens"], options["rate"]
    if options["trace"] is not None:
        if prompt is not None or output is not None:
            raise click.UsageError("--trace has the lengths; leave out --prompt-tokens and --output-tokens")
        workload, seen = trace_workload(engine, law, options["trace"], options["limit"])
        notes = (
            []
            if rate is not None or seen is None
            else [f"rate from the trace: {seen:.3g} requests/s, its mean"]
        )
        return workload, rate if rate is not None else seen, notes
    notes = []
    if prompt is None and output is None:
        notes.append("lengths are made up: say --prompt-tokens and --output-tokens, or --trace")
    workload = given_workload(
        engine, law, prompt_tokens=prompt or 1000, output_tokens=output or 250, spread=options["spread"]
    )
    return workload, rate, notes


def _duration(option: str, text: str | None) -> float | None:
    from forebay.config.units import parse_duration_s

    if text is None:
        return None
    try:
        value = parse_duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if value <= 0:
        raise click.BadParameter("must be above 0", param_hint=option)
    return value
