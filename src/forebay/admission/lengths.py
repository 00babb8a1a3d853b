"""How long answers are, as learned: decayed histograms of output tokens at four levels.

`OutputLengths` hands out the law (`length_law`) for a request:

    pool  <-  class  <-  class and tenant  <-  class, tenant and prompt size (log2 of its tokens)

The law of each level rests on what was observed there and, with the weight of `BACKOFF` answers, on the law of the
level above: n ÷ (n + κ) of it is its own. Above the pool stands a prior, which a few answers outweigh. Finer levels
forget sooner. Of tenants and of prompt sizes only those seen lately are kept; the others share the law above.

An answer that was cut off says only "longer than this", and enters as that. Left out, it would teach that answers are
short just when clients lose patience; taken as a length, that answers are as long as the limits that clients set.

Laws are snapshots, made anew once every so many looks and answers, so that what a request pays for is a look-up.
They go into a state file and come back from it (`export`, `restore`). No clock: what fades, fades with what comes
after it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forebay.admission.length_law import BINS, KNOTS, PRIOR, PRIOR_WEIGHT, LengthLaw, bin_from, learned_law
from forebay.admission.plain_data import entries_of, fields_of, name_of, number_of

TRUSTED_AFTER: Final = 30
"""Answers after which what was learned may decide against a client."""
BACKOFF: Final = 50.0
"""κ: answers that the law of the level above counts for."""
TENANTS: Final = 1024
PROMPT_SIZES: Final = 512
"""Most keys kept at these levels, over all classes; a key with a law of its own takes some 10 KiB."""
_CLASSES: Final = 1000
"""More than anybody configures: the most that a state file may hold."""
_OWN_FROM: Final = 8.0
"""Answers below which a tenant or prompt size has no law of its own: making one would cost more than it tells."""
FEW: Final = 8
"""Answers that a key keeps as they came: its tables would be larger."""
_ENDED: Final = -1.0
_NO_COUNTS: Final[list[float]] = []
"""Nobody writes into it: counts are written once they have been spread. Most keys never get so far."""
_RESCALE_AT: Final = 1e12


class _Level:
    """How the keys of one level learn."""

    __slots__ = ("backing", "decay", "every", "memory", "own_from")

    def __init__(self, memory: float, every: int, backing: float, own_from: float) -> None:
        self.memory = memory
        """Answers that are remembered: the most that the decayed counts add up to."""
        self.decay = 1 - 1 / memory
        self.every = every
        """Looks and answers between two laws."""
        self.backing = backing
        """Answers that the level above counts for."""
        self.own_from = own_from
        """Answers before the first law."""


_POOL: Final = _Level(1600.0, 1024, PRIOR_WEIGHT, 0.0)
_CLASS: Final = _Level(800.0, 512, BACKOFF, 0.0)
_TENANT: Final = _Level(400.0, 256, BACKOFF, _OWN_FROM)
_PROMPT_SIZE: Final = _Level(200.0, 192, BACKOFF, _OWN_FROM)


class _Key:
    """The decayed counts of one key, and its present law. Old answers shrink by making new ones larger."""

    __slots__ = (
        "_changed",
        "_cut",
        "_ended",
        "_few",
        "_level",
        "_made_from",
        "_unit",
        "_weight",
        "law",
        "left",
        "parent",
        "seen",
    )

    def __init__(self, level: _Level, parent: _Key | None) -> None:
        self.parent = parent
        self.law: LengthLaw = PRIOR
        self.left = 0
        """Looks and answers until the law is made anew."""
        self.seen = False
        """An answer came since it was last passed over when one had to be forgotten."""
        self._level = level
        self._made_from: LengthLaw | None = None
        """The parent's law that went into this one's; None before there was one."""
        self._changed = False
        self._few: list[tuple[int, float, float]] = []
        """The first answers as they came: (bin, share of it that was seen, weight). Most tenants never have more."""
        self._ended = _NO_COUNTS
        """Weight by bin of those that ended, and of those cut off; both empty while there are few."""
        self._cut = _NO_COUNTS
        self._unit = 1.0
        """What the last answer weighs."""
        self._weight = 0.0
        """What all answers weigh together."""

    @property
    def answers(self) -> float:
        """Answers remembered, older ones for less than one."""
        return self._weight / self._unit

    def observe(self, index: int, seen: float, censored: bool) -> None:
        """One answer that ended in bin `index`, or was cut off when this share of the bin was behind it."""
        self._unit /= self._level.decay
        if not self._ended:
            self._few.append((index, seen if censored else _ENDED, self._unit))
            if len(self._few) >= FEW:
                self._spread()
        elif censored:
            self._cut[index] += self._unit * (1 - seen)
            self._cut[index + 1] += self._unit * seen
        else:
            self._ended[index] += self._unit
        self._weight += self._unit
        self._changed = True
        if self.left:
            self.left -= 1
        if self._unit > _RESCALE_AT:
            self._ended = [count / self._unit for count in self._ended]
            self._cut = [count / self._unit for count in self._cut]
            self._weight /= self._unit
            self._unit = 1.0

    def _spread(self) -> None:
        """Count the first answers by bin."""
        if self._ended:
            return
        self._ended, self._cut = [0.0] * BINS, [0.0] * (BINS + 1)
        for index, seen, unit in self._few:
            if seen == _ENDED:
                self._ended[index] += unit
            else:
                self._cut[index] += unit * (1 - seen)
                self._cut[index + 1] += unit * seen
        self._few = []

    def look(self) -> LengthLaw:
        """The present law, made anew if it is time."""
        if self.left:
            self.left -= 1
            return self.law
        return self.renewed()

    def renewed(self) -> LengthLaw:
        """The present law, when its time is over."""
        above = self.parent.look() if self.parent is not None else PRIOR
        answers, level = self._weight / self._unit, self._level
        if not answers or answers < level.own_from:
            return above
        if self._changed or above is not self._made_from:
            self._spread()
            self.law = learned_law(above, self._ended, self._cut, self._unit, level.backing)
            self._made_from = above
            self._changed = False
        # The fewer answers there are, the more the next one moves the law.
        pause = int(level.own_from + answers)
        self.left = pause if pause < level.every else level.every
        return self.law

    def export(self) -> dict[str, object]:
        """Counts by bin, in answers; bins without any are left out."""
        self._spread()
        return {"ended": _sparse(self._ended, self._unit), "cut": _sparse(self._cut, self._unit)}

    def restore(self, fields: dict[str, object], what: str) -> None:
        """Fill a new key. Raises: ValueError."""
        self._ended = _counts(fields.get("ended"), BINS, f"{what}: ended")
        self._cut = _counts(fields.get("cut"), BINS + 1, f"{what}: cut")
        self._weight = sum(self._ended, 0.0) + sum(self._cut, 0.0)
        if self._weight > self._level.memory + 1:
            raise ValueError(f"{what}: {self._weight:g} answers are more than are remembered")


class OutputLengths:
    """Output tokens per answer of one pool, by class, tenant and prompt size."""

    __slots__ = ("_classes", "_pool", "_prompt_sizes", "_tenants")

    def __init__(self) -> None:
        self._pool = _Key(_POOL, None)
        self._classes: dict[str, _Key] = {}
        self._tenants: OrderedDict[tuple[str, str], _Key] = OrderedDict()
        """As they came, with those passed over since at the end; likewise the prompt sizes."""
        self._prompt_sizes: OrderedDict[tuple[str, str, int], _Key] = OrderedDict()

    def expect(self, class_name: str, tenant: str, prompt_tokens: int) -> LengthLaw:
        """The law of one answer to such a request. It knows no limit: ask it with the limit of the request."""
        key = self._prompt_sizes.get((class_name, tenant, prompt_tokens.bit_length()))
        if key is None:
            key = self._tenants.get((class_name, tenant))
            if key is None:
                key = self._classes.get(class_name)
                if key is None:
                    key = self._pool
        if key.left:  # as `look`, without the call
            key.left -= 1
            return key.law
        return key.renewed()

    def observe(
        self, class_name: str, tenant: str, prompt_tokens: int, output_tokens: int, *, censored: bool
    ) -> None:
        """Learn from one answer (one sample).

        Args:
            output_tokens: its tokens, as far as they came.
            censored: True if it would have gone on: the client left, the engine failed, we ended it, or it reached
                its own limit (finish reason `length`). Limits are set by clients and must not teach lengths.
        """
        if output_tokens < 1:
            if censored:
                return  # that it would have had a token is known of every answer
            output_tokens = 1
        if output_tokens >= KNOTS[BINS]:
            output_tokens = KNOTS[BINS] - 1
        index = bin_from(output_tokens - 1)
        seen = (output_tokens - KNOTS[index]) / (KNOTS[index + 1] - KNOTS[index]) if censored else 1.0
        key: _Key | None = self._key_of(class_name, tenant, prompt_tokens.bit_length())
        while key is not None:
            key.observe(index, seen, censored)
            key = key.parent

    def trusted(self, class_name: str) -> bool:
        """True once the class has enough answers for its laws to decide against a client.

        The pool's other classes do not count, and a tenant or a prompt size never has more answers than its class.
        """
        key = self._classes.get(class_name)
        return key is not None and key.answers >= TRUSTED_AFTER

    def export(self) -> dict[str, object]:
        """What was learned, as plain data for JSON; keys that would be forgotten first come first."""
        tenants, sizes = self._tenants, self._prompt_sizes
        return {
            "bins": list(KNOTS),
            "pool": self._pool.export(),
            "classes": [{"class": name, **key.export()} for name, key in self._classes.items()],
            "tenants": [
                {"class": name[0], "tenant": name[1], **key.export()} for name, key in tenants.items()
            ],
            "prompt_sizes": [
                {"class": name[0], "tenant": name[1], "size": name[2], **key.export()}
                for name, key in sizes.items()
                if (name[0], name[1]) in tenants
            ],
        }

    def restore(self, state: object) -> None:
        """Take back what `export` gave. Raises: ValueError for anything else, and then nothing has changed."""
        fields = fields_of(state, "output lengths")
        if fields.get("bins") != list(KNOTS):
            raise ValueError("output lengths: counted in other bins than ours")
        made = OutputLengths()
        made._pool.restore(fields_of(fields.get("pool"), "pool"), "pool")
        for entry in entries_of(fields.get("classes"), "classes", _CLASSES):
            class_name = name_of(entry, "class")
            if class_name in made._classes:
                raise ValueError(f"classes: {class_name!r} is there twice")
            made._new_class(class_name).restore(entry, "class")
        for entry in entries_of(fields.get("tenants"), "tenants", TENANTS):
            name = (name_of(entry, "class"), name_of(entry, "tenant"))
            if name[0] not in made._classes or name in made._tenants:
                raise ValueError(f"tenants: {name!r} is there twice, or its class is not")
            made._new_tenant(name).restore(entry, "tenant")
        for entry in entries_of(fields.get("prompt_sizes"), "prompt_sizes", PROMPT_SIZES):
            name, size = (name_of(entry, "class"), name_of(entry, "tenant")), entry.get("size")
            if not isinstance(size, int) or not 0 <= size < 64:
                raise ValueError(f"prompt_sizes: not a size: {size!r:.80}")
            finest = (name[0], name[1], size)
            if name not in made._tenants or finest in made._prompt_sizes:
                raise ValueError(f"prompt_sizes: {finest!r} is there twice, or its tenant is not")
            made._new_prompt_size(finest).restore(entry, "prompt size")
        self._pool, self._classes = made._pool, made._classes
        self._tenants, self._prompt_sizes = made._tenants, made._prompt_sizes

    def _key_of(self, class_name: str, tenant: str, size: int) -> _Key:
        """The finest key of a request, made if need be, and noted as seen at each level."""
        name = (class_name, tenant)
        above = self._tenants.get(name)
        if above is None:
            if class_name not in self._classes:
                self._new_class(class_name)
            above = self._new_tenant(name)
        else:
            above.seen = True
        finest = (class_name, tenant, size)
        key = self._prompt_sizes.get(finest)
        if key is None:
            # Of a tenant that is hardly known, nobody needs to know more exactly.
            return above if above.answers < _OWN_FROM else self._new_prompt_size(finest)
        key.seen = True
        key.parent = above  # another one, if the tenant was forgotten meanwhile
        return key

    def _new_class(self, name: str) -> _Key:
        key = self._classes[name] = _Key(_CLASS, self._pool)
        return key

    def _new_tenant(self, name: tuple[str, str]) -> _Key:
        tenants = self._tenants
        if len(tenants) >= TENANTS:
            # The first one that was not seen again: as good as the one seen longest ago, and costs requests nothing.
            while tenants[oldest := next(iter(tenants))].seen:
                tenants[oldest].seen = False
                tenants.move_to_end(oldest)
            del tenants[oldest]
        key = tenants[name] = _Key(_TENANT, self._classes[name[0]])
        return key

    def _new_prompt_size(self, name: tuple[str, str, int]) -> _Key:
        sizes = self._prompt_sizes
        if len(sizes) >= PROMPT_SIZES:
            while sizes[oldest := next(iter(sizes))].seen:
                sizes[oldest].seen = False
                sizes.move_to_end(oldest)
            del sizes[oldest]
        key = sizes[name] = _Key(_PROMPT_SIZE, self._tenants[name[0], name[1]])
        return key


# Plain data of a state file


def _sparse(counts: list[float], unit: float) -> list[list[float]]:
    """[[bin, answers], …] with what rounds to nothing left out."""
    found = []
    for index, count in enumerate(counts):
        answers = round(count / unit, 4)
        if answers:
            found.append([index, answers])
    return found


def _counts(value: object, size: int, what: str) -> list[float]:
    """The opposite of `_sparse`."""
    if not isinstance(value, list):
        raise ValueError(f"{what}: not a list")
    counts = [0.0] * size
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{what}: not a bin and its answers: {pair!r:.80}")
        index = pair[0]
        if not isinstance(index, int) or not 0 <= index < size:
            raise ValueError(f"{what}: no such bin: {index!r:.80}")
        counts[index] += number_of(pair[1], what)
    return counts
