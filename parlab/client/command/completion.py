"""Completion of the command `parlab` for bash, zsh and fish, from its parser."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")

_BASH = """_parlab() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in {commands}) command="$word"; break;; esac
    done
    case "$command" in
        "") COMPREPLY=($(compgen -W "{names} {options}" -- "$current"));;
{cases}
    esac
    [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _parlab parlab
"""
_ZSH = """#compdef parlab
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that a shell reads to complete `parlab`."""
    commands = _commands(parser)
    if shell == "fish":
        return _fish(commands)
    bash = _bash(parser, commands)
    return _ZSH.format(bash=bash) if shell == "zsh" else bash


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [action] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(action.choices)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _bash(parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> str:
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W "{" ".join(_options(command))}" -- "$current"));;'
        for name, command in commands.items()
    )
    return _BASH.format(
        commands="|".join(commands), names=" ".join(commands), options=" ".join(_options(parser)), cases=cases
    )


def _fish(commands: dict[str, argparse.ArgumentParser]) -> str:
    lines = ["complete -c parlab -f -n __fish_use_subcommand -l url -r"]
    for name, command in commands.items():
        text = (command.description or "").replace("'", "\\'")
        lines.append(f"complete -c parlab -f -n __fish_use_subcommand -a {name} -d '{text}'")
        for option in _options(command):
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"complete -c parlab -n '__fish_seen_subcommand_from {name}' {kind}")
    return "\n".join([*lines, ""])
