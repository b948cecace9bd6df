"""A pickle walked opcode by opcode: what it would import, make or fill becomes an inert record, and nothing is called."""

import pickletools
from dataclasses import dataclass, field, replace
from typing import Any

MOST_OPCODES = 5_000_000
CLASSES = {f"torch.nn.modules.conv {kind}{d}d": f"{kind}{d}d" for kind in ("Conv", "ConvTranspose") for d in (1, 2, 3)}
CLASSES["construct.attention MHSA"] = "MHSA"
_LITERALS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "LONG1": 0, "LONG4": 0, "BINFLOAT": 0.0}
_LITERALS |= dict.fromkeys(
    "BININT BININT1 BININT2 BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES".split()
)


class Rejected(ValueError):
    """The files are not what they claim to be, or claim something that is not so; one line says what."""


@dataclass(eq=False)
class Made:
    """What pickle would have made: by calling ``kind`` on ``args``, filling it with ``pairs``, giving it ``state``."""

    kind: str
    args: Any = ()
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    state: Any = None

    def entries(self) -> dict[str, Any]:
        """The content of a dict whose keys are different texts."""
        found = {key: value for key, value in self.pairs if type(key) is str}
        if self.kind not in ("dict", "collections OrderedDict") or self.args or len(found) != len(self.pairs):
            raise Rejected(f"a {self.kind} where a dict of names belongs")
        return found


def walk(pickle: bytes) -> tuple[Any, list[Made]]:
    """Walk a pickle without carrying it out: the record of what it describes, and the records of all layers."""
    stack: list[Any] = []
    outer: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    layers: list[Made] = []
    steps: Any = enumerate(pickletools.genops(pickle))
    for count, (opcode, argument, position) in steps:
        name, operands, marked = opcode.name, len(opcode.stack_before), []
        if pickletools.markobject in opcode.stack_before:
            operands = opcode.stack_before.index(pickletools.markobject)
            marked, stack = stack, outer.pop()
        if len(stack) < operands or count >= MOST_OPCODES:
            raise Rejected(f"the pickle takes what is not there, or has more than {MOST_OPCODES} opcodes")
        taken = [*stack[len(stack) - operands :], *marked]
        del stack[len(stack) - operands :]
        if name in _LITERALS:
            new = _LITERALS[name] if argument is None else argument
        elif name in ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            new = tuple(taken)
        elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
            new = Made(name[6:].lower())
        elif name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"):
            new, *items = taken
            new.pairs += zip(items[::2], items[1::2], strict=True) if "SET" in name else ((item, 0) for item in items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            new = Made("global", " ".join(taken or [argument]))  # never looked up
        elif name == "BINPERSID":
            new = Made("storage", taken[0])
        elif name in ("REDUCE", "NEWOBJ"):
            new = Made(taken[0].args if taken[0].kind == "global" else "call of an object", taken[1])
            layers += [new] if new.kind in CLASSES else []
        elif name == "BUILD" and taken[0].state is None:
            new, state = taken  # pickle, too, copies what a dict holds at this moment
            new.state = replace(state, pairs=[*state.pairs]) if isinstance(state, Made) else state
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            new = memo[len(memo) if argument is None else argument] = taken[0] if taken else stack.pop()
        elif name in ("BINGET", "LONG_BINGET"):
            new = memo[argument]
        elif name == "STOP" and not stack and not outer and position + 1 == len(pickle):
            return taken[0], layers
        elif name in ("PROTO", "FRAME"):
            continue
        elif name == "MARK":
            outer.append(stack)
            stack = []
            continue
        else:
            raise Rejected(f"the pickle has {name} at {position}, where torch.save writes none")
        stack.append(new)
    raise Rejected("the pickle has no end")
