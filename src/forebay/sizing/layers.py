"""The settings of a plan as text, one for each layer: edge, Forebay, engine, and autoscaling beside them.

The layers fit together like this. The edge counts requests and stops floods; Forebay decides who runs, who waits and
who is refused, and sends an engine no more than it can hold; the engine's own limits lie a little above what it is
sent, so that it never queues by itself, and stop it from taking more than its memory if Forebay is bypassed.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.sizing.plan import HEADROOM, Plan

__all__ = ["LAYERS", "edge_yaml", "engine_flags", "forebay_yaml", "keda_yaml"]

LAYERS: Final = ("edge", "forebay", "engine", "keda")


def edge_yaml(plan: Plan) -> str:
    """An Envoy filter: a local rate limit in requests."""
    refill, capacity = plan.edge_bucket
    per_fill = max(1, round(refill))
    interval_s = max(0.05, per_fill / refill)
    most = max(per_fill, math.ceil(capacity))
    return f"""\
# Envoy, before the router: at most {refill:.3g} requests/s, {most} at once. For each Envoy process:
# divide by how many there are. Tenants are told apart in Forebay's plans.
- name: envoy.filters.http.local_ratelimit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
    stat_prefix: edge
    token_bucket: {{max_tokens: {most}, tokens_per_fill: {per_fill}, fill_interval: {interval_s:.3f}s}}
    filter_enabled: {{default_value: {{numerator: 100, denominator: HUNDRED}}}}
    filter_enforced: {{default_value: {{numerator: 100, denominator: HUNDRED}}}}
"""


def forebay_yaml(plan: Plan, *, profile: str | None, pool: str = "default") -> str:
    """A configuration that `forebay check` accepts; only the endpoints are made up.

    Args:
        profile: what the speed is taken from; None where it was only estimated, so that it is learned.
    """
    urls = ", ".join(f"http://engine-{number}:8000" for number in range(1, min(plan.endpoints, 3) + 1))
    more = f"   # … {plan.endpoints} in all" if plan.endpoints > 3 else ""
    lines = [
        "# Forebay. Put your own endpoints.",
        "pools:",
        f"  - name: {pool}",
        f"    endpoints: [{urls}]{more}",
        f"    gpus: {plan.engine.gpus}",
        f"    profile: {'learn' if profile is None else _quoted(profile)}",
        f"    queue_policy: {plan.policy}",
        f"    max_inflight_requests: {plan.limits.max_inflight}",
        f"    max_inflight_tokens: {int(HEADROOM * plan.engine.kv_tokens)}",
        f"    max_gpu_seconds: {_rounded(plan.pool_gpu_s / HEADROOM)}",
        "classes:",
    ]
    depths = {depth.name: depth.by_drain for depth in plan.depths}
    lines += [
        f"  {target.name}: {{ttft: {_ms(target.ttft_s)}, tpot: {_ms(target.tpot_s)}, "
        f"wait_budget: {_ms(target.wait_budget_s)}, weight: {target.weight:g}, value: {target.value:g}, "
        f"max_queue: {max(1, math.ceil(depths[target.name]))}}}"
        for target in plan.classes
    ]
    return "\n".join(lines) + "\n"


def engine_flags(plan: Plan, *, utilization: float | None = None, kv_dtype: str = "auto") -> str:
    """Flags of vLLM, and of SGLang where it has the same."""
    engine = plan.engine
    flags = [
        f"--max-num-seqs {plan.limits.max_num_seqs}",
        f"--max-num-batched-tokens {plan.limits.max_num_batched_tokens}",
    ]
    same = [
        f"--max-running-requests {plan.limits.max_num_seqs}",
        f"--chunked-prefill-size {plan.limits.max_num_batched_tokens}",
    ]
    if engine.gpus > 1:
        flags.insert(0, f"--tensor-parallel-size {engine.gpus}")
        same.insert(0, f"--tp-size {engine.gpus}")
    flags.append(f"--gpu-memory-utilization {0.9 if utilization is None else utilization:g}")
    flags.append(f"--max-model-len {min(engine.context_tokens, engine.kv_tokens)}")
    same.append(f"--context-length {min(engine.context_tokens, engine.kv_tokens)}")
    if kv_dtype == "fp8":
        flags.append("--kv-cache-dtype fp8")
        same.append("--kv-cache-dtype fp8_e4m3")
    return (
        "\n".join(
            [
                "# vLLM",
                f"vllm serve MODEL {' '.join(flags)}",
                "# SGLang",
                f"python -m sglang.launch_server --model-path MODEL {' '.join(same)}",
            ]
        )
        + "\n"
    )


def keda_yaml(plan: Plan, *, pool: str = "default") -> str:
    """A ScaledObject: endpoints wanted, by work done and waiting, over what one endpoint is planned for."""
    budget_s = plan.classes[0].wait_budget_s
    query = (
        f'(sum(rate(forebay_tenant_gpu_seconds_total{{pool="{pool}"}}[2m])) + '
        f'sum(forebay_queue_gpu_seconds{{pool="{pool}"}}) / {budget_s:g}) / {plan.engine.gpus}'
    )
    return f"""\
# KEDA. The query says how many endpoints would be busy; another is started above {plan.scale_target:.0%} of each.
# {_rounded(plan.scale_up_gpu_s)} GPU-seconds waiting per endpoint ask for one more by themselves; refusals begin above.
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: {pool}-engines}}
spec:
  scaleTargetRef: {{name: {pool}-engines}}
  minReplicaCount: {max(1, min(plan.endpoints, 2))}
  maxReplicaCount: {max(2, 2 * plan.endpoints)}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {{stabilizationWindowSeconds: 0, policies: [{{type: Percent, value: 100, periodSeconds: 60}}]}}
        scaleDown: {{stabilizationWindowSeconds: 600, policies: [{{type: Pods, value: 1, periodSeconds: 300}}]}}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: http://prometheus:9090
        threshold: "{plan.scale_target:g}"
        query: |-
          {query}
"""


def _quoted(text: str) -> str:
    """A YAML string: file names may have anything in them."""
    if all(sign.isalnum() or sign in "._-/" for sign in text):
        return text
    escaped = "".join(f"\\{sign}" if sign in '"\\' else sign for sign in text)
    return f'"{escaped}"'


def _rounded(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
