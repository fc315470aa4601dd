"""`python -m manytail COMMAND`: the command line. A command is imported only when it is asked for."""

import sys

USAGE = """\
usage: python -m manytail COMMAND [options]

commands:
  doctor  say what is installed, and check with threads that it works (--help for its options)
  demo    call an API that has a quota, with a pool and with a map; kill the run, resume it (--help for its options)
          --spark: real flights enriched by HTTP calls inside Spark (--spark --help for its options)
"""


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    if arguments[:1] == ["demo"]:
        if "--spark" in arguments:
            from manytail.demo.cli import main as flights

            return flights([argument for argument in arguments[1:] if argument != "--spark"])
        from manytail.demo.local.cli import main as demo

        return demo(arguments[1:])
    if arguments[:1] == ["doctor"]:
        from manytail.doctor import main as doctor

        return doctor(arguments[1:])
    asked = arguments[:1] in (["-h"], ["--help"])
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
