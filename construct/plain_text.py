"""Text that comes from a file or from another library, made safe to show: one line, no control characters."""


def shown(name: str) -> str:
    """A name as it is if every character is printable, else its ``repr``."""
    return name if name.isprintable() else repr(name)


def one_line(text: object, limit: int = 600) -> str:
    """Any message on one line of printable characters, cut where it is very long."""
    line = " ".join(str(text).split())
    if len(line) > limit:
        line = line[: limit - 4] + " ..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def described(error: BaseException) -> str:
    """What an error says, on one line, with its class in front."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
