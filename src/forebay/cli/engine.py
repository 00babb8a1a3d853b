"""`forebay engine`: runs the engine emulator until it is told to stop. Parsing and printing only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forebay.cli.profiles import print_profiles

if TYPE_CHECKING:
    from forebay.emulator import EmulatorSettings
    from forebay.enginemodel import EngineProfile

_EPILOG = """
\b
Try it:
  forebay engine --port 8000
  curl -N localhost:8000/v1/completions -H 'content-type: application/json' \\
    -d '{"prompt": "hello", "max_tokens": 20, "stream": true}'
  curl -s localhost:8000/metrics | grep -E 'running|waiting|kv_cache_usage|preemptions_total'

\b
To see an engine run out of KV cache, give it little of it and much to do:
  forebay engine --kv-tokens 60000

Lengths. Four bytes of prompt are one token. An answer has a log-normally distributed length that depends on the
prompt and --seed (median 180 tokens), unless the body says "ignore_eos": true (then exactly max_tokens) or
"emulator_output_tokens": N (then N, cut at max_tokens). The text is filler.
"""


@click.command(
    epilog=_EPILOG,
    context_settings={"show_default": True, "max_content_width": 110},
)
@click.option(
    "--profile",
    "profile_name",
    default="llama3-8b-h100x1-bf16",
    metavar="NAME|FILE",
    help="Measured engine to emulate, or a file with one (FILE:NAME if it holds several). "
    "An unknown name lists those there are; `--profile list` prints them.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--model", default=None, help="Name of the model served.  [default: the profile's]", show_default=False
)
@click.option(
    "--speed",
    type=click.FloatRange(0.0, 10_000.0, min_open=True),
    default=1.0,
    help="How many times faster than the measured engine time passes.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    default=None,
    help="Sequences that run at once; others wait.  [default: the profile's]",
    show_default=False,
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Tokens that one step computes at most: decoding sequences plus prefill chunks.  [default: the profile's]",
    show_default=False,
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Tokens that the KV cache holds. Less means earlier preemption.  [default: the profile's]",
    show_default=False,
)
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(min=2),
    default=None,
    help="Longest prompt plus answer, in tokens.  [default: the profile's, or --kv-tokens if that is less]",
    show_default=False,
)
@click.option(
    "--prefix-caching/--no-prefix-caching",
    default=True,
    help="Whether prompts that start alike share KV blocks and skip that part of prefill.",
)
@click.option("--seed", type=int, default=0, help="Same seed and same requests: same lengths and same text.")
def command(
    *,
    profile_name: str,
    port: int,
    host: str,
    model: str | None,
    speed: float,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_tokens: int | None,
    context_tokens: int | None,
    prefix_caching: bool,
    seed: int,
) -> None:
    """Run the engine emulator: an OpenAI-compatible server with measured timing.

    It answers like vLLM (same API, errors and metrics) and takes the time that a measured engine takes: continuous
    batching, chunked prefill, a KV cache that fills up, preemption, prefix reuse. No GPU and no model are needed.
    """
    from forebay.emulator import EmulatorSettings
    from forebay.enginemodel import EngineConfig, MisuseError

    profile = _load(profile_name)
    if profile is None:
        return
    try:
        config = EngineConfig.from_profile(
            profile,
            kv_tokens=kv_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            context_tokens=context_tokens,
            prefix_caching=prefix_caching,
        )
    except MisuseError as error:
        raise click.UsageError(str(error)) from error
    _run(
        EmulatorSettings(
            profile=profile, config=config, model=model, host=host, port=port, speed=speed, seed=seed
        )
    )


def _load(name: str) -> EngineProfile | None:
    """The profile, or None after printing the list of them."""
    from forebay.profiles import ProfileError, load_profile

    if name == "list":
        print_profiles()
        return None
    try:
        return load_profile(name)
    except ProfileError as error:
        raise click.BadParameter(str(error), param_hint="--profile") from error


def _why_not(error: OSError, settings: EmulatorSettings) -> str:
    """Why it cannot listen there, and which option to change."""
    import errno

    if error.errno == errno.EADDRINUSE:
        fix = "another program uses it; stop that one, or choose another --port"
    elif error.errno == errno.EACCES:
        fix = "not allowed; ports below 1024 need a privilege, choose another --port"
    elif error.errno == errno.EADDRNOTAVAIL:
        fix = "this machine does not have that address; choose one that it has as --host"
    else:
        fix = f"{error.strerror or error}; choose an address of this machine as --host"
    return f"cannot listen on {settings.host}:{settings.port}: {fix}"


def _run(settings: EmulatorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    import asyncio
    import signal

    import uvloop

    from forebay.emulator import EmulatorServer

    async def serve() -> None:
        server = EmulatorServer(settings)
        try:
            await server.start()
        except OSError as error:
            raise click.ClickException(_why_not(error, settings)) from error
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        config = server.config
        click.echo(
            f"engine listening on {server.url} (model {server.model}, profile {settings.profile.name}, "
            f"{config.kv_tokens} KV tokens, {config.max_num_seqs} sequences, speed {settings.speed:g})"
        )
        await stop.wait()
        await server.close()

    uvloop.run(serve())
