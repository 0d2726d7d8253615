"""The command line: parses, calls one function of the package, prints. Standard output carries results alone.

Exit status: 0; 1 for an error that the user can act on; 2 for wrong usage; 130 on Ctrl-C; 141 when the reader of the output went away.
Nothing heavy is imported before a command runs, so that --help is quick.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .engine.errors import InvalidArgument, LlamitaError
from .loaders.progress import ProgressLine

if TYPE_CHECKING:
    from .models.language_model import LanguageModel

app = typer.Typer(
    name="llamita",
    help="Run small quantised LLaMA-family models on this computer's CPU.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export the base class of its usage errors


def _number(kind: type[int] | type[float], low: float, high: float = math.inf) -> dict[str, Any]:
    """Settings of an option that takes a finite number in [low, high]; typer's own ranges let NaN pass and hide the value."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or value == math.inf:
            bounds = f">= {low}" if high == math.inf else f"from {low} to {high}"
            raise typer.BadParameter(f"expected {'an integer' if kind is int else 'a number'} {bounds}, got {text}")
        return value

    return {"parser": parse, "metavar": "N" if kind is int else "X"}


def _one_of(*choices: Any) -> dict[str, Any]:
    """Settings of an option that takes one of a few values."""

    def parse(text: Any) -> Any:
        if str(text) in (named := {str(choice): choice for choice in choices}):
            return named[str(text)]
        raise typer.BadParameter(f"expected one of {', '.join(named)}, got {text}")

    return {"parser": parse, "metavar": "|".join(map(str, choices))}


_Model = Annotated[
    str | None,
    typer.Option("-m", "--model", help="A .gguf file, a folder, a library name, or hf:owner/repo[/file.gguf]. [default: smollm2-135m]"),
]
_Prompt = Annotated[str | None, typer.Argument(help='The prompt; "-", or none with a pipe: standard input.', show_default=False)]
_PromptFlag = Annotated[str | None, typer.Option("-p", "--prompt", hidden=True, help="The same as PROMPT.")]
_File = Annotated[Path | None, typer.Option("-f", "--file", help="Read the text from this file.")]
_MaxTokens = Annotated[
    int, typer.Option("-n", "--max-tokens", "--predict", "--n-predict", help="-1: until the model ends.", **_number(int, -2))
]
_Context = Annotated[int, typer.Option("-c", "--ctx-size", help="Size of the context; 0: the model's.", **_number(int, 0, 2**31 - 1))]
_Threads = Annotated[int | None, typer.Option("-t", "--threads", help="[default: the cores this process may use]", **_number(int, 1))]
_Seed = Annotated[int, typer.Option("-s", "--seed", help="Of the random numbers; -1: another each time.", **_number(int, -1, 2**64 - 1))]
_Temperature = Annotated[float, typer.Option("--temp", "--temperature", help="0: always the likeliest token.", **_number(float, 0))]
_TopK = Annotated[int, typer.Option("--top-k", help="Keep the N likeliest tokens; 0: all.", **_number(int, -1))]
_TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this probability.", **_number(float, 0, 1))]
_MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens less likely than X times the likeliest.", **_number(float, 0, 1))]
_RepeatPenalty = Annotated[float, typer.Option("--repeat-penalty", help="Above 1: less repetition.", **_number(float, 1e-6))]
_RepeatLastN = Annotated[int, typer.Option("--repeat-last-n", help="Tokens that the penalty looks back; -1: all.", **_number(int, -1))]
_Stop = Annotated[list[str] | None, typer.Option("--stop", "-r", "--reverse-prompt", help="End before this text; may be repeated.")]
_System = Annotated[str | None, typer.Option("--system", "-sys", "--system-prompt", help="System message for the chat template.")]
_Raw = Annotated[bool, typer.Option("--raw", "-no-cnv", "--no-conversation", help="Do not apply the model's chat template.")]
_IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Never choose a token that ends the text.")]
_Activations = Annotated[int | None, typer.Option(help="Bits of activations that meet quantised weights.", **_one_of(8, 16, 32))]
_VerbosePrompt = Annotated[bool, typer.Option("--verbose-prompt", help="Show the prompt's tokens on standard error.")]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no statistics.")]
_NoOp = Annotated[bool, typer.Option("-st", "--single-turn", "--no-display-prompt", hidden=True, help="As always.")]
_SingleTurn = Annotated[bool, typer.Option("-st", "--single-turn", help="Leave after the first answer.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and what kernels are compiled for.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    if version:
        from .models.info import version_text

        print(version_text())
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    prompt: _Prompt = None,
    model: _Model = None,
    file: _File = None,
    max_tokens: _MaxTokens = -1,
    ctx_size: _Context = 0,
    threads: _Threads = None,
    seed: _Seed = -1,
    temp: _Temperature = 0.8,
    top_k: _TopK = 40,
    top_p: _TopP = 0.95,
    min_p: _MinP = 0.05,
    repeat_penalty: _RepeatPenalty = 1.0,
    repeat_last_n: _RepeatLastN = 64,
    stop: _Stop = None,
    system: _System = None,
    raw: _Raw = False,
    ignore_eos: _IgnoreEos = False,
    activations: _Activations = None,
    verbose_prompt: _VerbosePrompt = False,
    quiet: _Quiet = False,
    prompt_flag: _PromptFlag = None,
    single_turn: _NoOp = False,
) -> None:
    """Generate text once, from a prompt."""
    from .models.terminal import say_tokens, show_answer

    if system is not None and raw:
        raise typer.BadParameter("it needs the chat template, which --raw turns off.", param_hint="'--system'")
    text = _text(prompt if prompt is not None else prompt_flag, file, "PROMPT")
    progress = ProgressLine(sys.stderr, quiet)
    options = _generation_options(locals(), progress)
    with _load(model, ctx_size, threads, activations, progress) as llm:
        raw = raw or (llm.chat_template is None and system is None)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        if verbose_prompt:
            say_tokens(llm.tokenizer, llm.tokenize(text, parse_special=True) if raw else llm.apply_chat_template(messages))
        chunks = llm.generate(text, **options) if raw else llm.chat(messages, **options)
        show_answer(chunks, progress, quiet, options["max_tokens"])


@app.command()
def chat(
    model: _Model = None,
    max_tokens: _MaxTokens = -1,
    ctx_size: _Context = 0,
    threads: _Threads = None,
    seed: _Seed = -1,
    temp: _Temperature = 0.8,
    top_k: _TopK = 40,
    top_p: _TopP = 0.95,
    min_p: _MinP = 0.05,
    repeat_penalty: _RepeatPenalty = 1.0,
    repeat_last_n: _RepeatLastN = 64,
    stop: _Stop = None,
    system: _System = None,
    raw: _Raw = False,
    ignore_eos: _IgnoreEos = False,
    activations: _Activations = None,
    quiet: _Quiet = False,
    single_turn: _SingleTurn = False,
) -> None:
    """Talk with the model.

    Commands: /exit /clear /regen /save [FILE]. Ctrl-C stops an answer, Ctrl-D leaves.
    """
    from .models.conversation import Conversation
    from .models.terminal import converse

    progress = ProgressLine(sys.stderr, quiet)
    options = _generation_options(locals(), progress)
    with _load(model, ctx_size, threads, activations, progress) as llm:
        talk = Conversation(llm, system, raw, **options)
        talk.check()
        converse(talk, progress, quiet, options["max_tokens"], 1 if single_turn else None)


@app.command()
def bench(
    model: _Model = None,
    n_prompt: Annotated[str, typer.Option("-p", "--n-prompt", help="Prompt lengths; lists and ranges in all of these.")] = "512",
    n_gen: Annotated[str, typer.Option("-n", "--n-gen", help="Numbers of tokens to generate.")] = "128",
    pairs: Annotated[list[str] | None, typer.Option("-pg", help="PROMPT,GENERATED in one test; may be repeated.")] = None,
    n_depth: Annotated[str, typer.Option("-d", "--n-depth", help="Tokens that are in the cache already.")] = "0",
    threads: Annotated[str | None, typer.Option("-t", "--threads", help="Numbers of threads.")] = None,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", help="Times each test is measured.", **_number(int, 1))] = 5,
    output: Annotated[str, typer.Option("-o", "--output", help="Format.", **_one_of("md", "json", "jsonl", "csv"))] = "md",
    activations: _Activations = None,
    no_warmup: Annotated[bool, typer.Option("--no-warmup", help="Measure the first run too.")] = False,
    no_roofline: Annotated[bool, typer.Option("--no-roofline", help="Do not compare decode with the speed of memory.")] = False,
    profiled: Annotated[bool, typer.Option("--profile", help="Show instead where the time of one token goes.")] = False,
    quiet: _Quiet = False,
) -> None:
    """Measure tokens per second, as llama-bench does.

    The roofline is what reading a token's bytes (packed weights, cache) with the same threads would allow.
    """
    from .models import bench as measuring
    from .models.bench_output import render

    try:
        tests = measuring.plan_tests(n_prompt, n_gen, pairs or (), n_depth)
        each: list[int] | None = measuring.parse_counts("-t", threads, 1) if threads else None
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from error
    progress = ProgressLine(sys.stderr, quiet)
    results = measuring.bench(model, tests, each, repetitions, activations, not no_warmup, progress, not no_roofline)
    profile = measuring.profile_lines(model, tests[0].n_depth, each, activations, progress)
    for line in profile if profiled else render(results, output, not no_roofline and any(test.is_decode for test in tests)):
        progress.close()
        print(line, flush=True)


@app.command()
def info(
    model: _Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    ctx_size: _Context = 0,
    quiet: _Quiet = False,
) -> None:
    """Show what a model file is, and what it needs on this computer."""
    from .models.info import describe, info_text

    facts = describe(model, ctx_size or None, on_progress=ProgressLine(sys.stderr, quiet))
    print(json.dumps(facts, ensure_ascii=False, indent=2) if as_json else info_text(facts))


@app.command()
def tokenize(
    text: Annotated[str | None, typer.Argument(help='The text; "-", or none with a pipe: standard input.', show_default=False)] = None,
    model: _Model = None,
    file: _File = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print a JSON list of the ids.")] = False,
    no_special: Annotated[bool, typer.Option("--no-special", "--no-bos", help="Add no tokens at the text's ends.")] = False,
    parse_special: Annotated[bool, typer.Option("--parse-special", help="Special tokens spelled out in the text count as such.")] = False,
    quiet: _Quiet = False,
) -> None:
    """Show the tokens of a text."""
    from .models.info import load_tokenizer
    from .models.terminal import token_lines

    source = _text(text, file, "TEXT", strip=False)
    tokenizer = load_tokenizer(model, on_progress=ProgressLine(sys.stderr, quiet))
    found = tokenizer.encode(source, add_special=not no_special, parse_special=parse_special)
    for line in [json.dumps(found)] if ids else token_lines(tokenizer, found):
        print(line)


@app.command()
def perplexity(
    file: _File = None,
    model: _Model = None,
    ctx_size: Annotated[int, typer.Option("-c", "--ctx-size", help="Tokens in a chunk.", **_number(int, 4))] = 512,
    chunks: Annotated[int, typer.Option("--chunks", help="At most this many chunks; -1: all.", **_number(int, -1))] = -1,
    threads: _Threads = None,
    activations: _Activations = None,
    quiet: _Quiet = False,
) -> None:
    """Measure how well a model predicts a text."""
    from .models.perplexity import perplexity as scores

    text = _text(None, file, "text", strip=False)
    progress = ProgressLine(sys.stderr, quiet)
    with _load(model, ctx_size, threads, activations, progress) as llm:
        bos = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
        for score in scores(llm.decoder, llm.tokenize(text), ctx_size, bos, chunks if chunks > 0 else None):
            progress.close()
            print(score.text, end="", flush=True)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A library name (see `llamita models`), or hf:owner/repo[/file.gguf].")],
    quiet: _Quiet = False,
) -> None:
    """Fetch a model into the cache and print where it is."""
    from .loaders.library import pull as fetch

    progress = ProgressLine(sys.stderr, quiet)
    path = fetch(name, progress)
    progress.close()
    print(path)


@app.command()
def models() -> None:
    """List the models that have a name."""
    from .loaders.library import list_models

    for model in list_models():
        where = str(model.path) if model.is_cached else f"not fetched yet: llamita pull {model.name}"
        print(f"{model.name}  {model.file_bytes / 2**20:.0f} MiB  {model.description}  {where}")


@app.command()
def warmup(model: _Model = None, activations: _Activations = None, quiet: _Quiet = False) -> None:
    """Compile the kernels that a model needs."""
    from .models.info import warm_up

    progress = ProgressLine(sys.stderr, quiet)
    warm_up(model, activations, on_progress=progress)
    progress.close()


# ---- what the commands share

# Option of the command line -> keyword of LanguageModel.generate and chat.
_GENERATION = {"temp": "temperature"} | {
    name: name for name in ("max_tokens", "seed", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "stop", "ignore_eos")
}


def _generation_options(given: dict[str, Any], progress: ProgressLine) -> dict[str, Any]:
    options = {keyword: given[name] for name, keyword in _GENERATION.items()}
    options["max_tokens"] = None if given["max_tokens"] < 0 else given["max_tokens"]
    options["seed"] = None if given["seed"] < 0 else given["seed"]
    options["stop"] = given["stop"] or ()
    options["on_progress"] = lambda done, total: progress("prefill", done, total)
    return options


def _load(model: str | None, ctx_size: int, threads: int | None, activations: int | None, progress: ProgressLine) -> LanguageModel:
    from .models.loading import load

    llm = load(model, n_ctx=ctx_size or None, n_threads=threads, activations=activations, on_progress=progress)
    progress.close()
    return llm


def _text(given: str | None, file: Path | None, name: str, strip: bool = True) -> str:
    """The text of an argument, a file or standard input; one newline at the end of the latter two is no part of a prompt."""
    if given not in (None, "-") and file is not None:
        raise typer.BadParameter(f"give {name} or -f {file}, not both.", param_hint=f"'{name}'")
    if given is not None and given != "-":
        return given
    if given is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter("nothing given: write it in quotes, name a file with -f, or pipe it in.", param_hint=f"'{name}'")
    from .models.terminal import read_text

    text = read_text(file)
    if given is None and file is None and not text:
        raise typer.BadParameter("nothing given, and standard input is empty.", param_hint=f"'{name}'")
    return text.removesuffix("\n").removesuffix("\r") if strip else text


def _normalised(args: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments with llama.cpp's `-hf NAME` spelled `-m hf:NAME` and --debug taken out, and whether that was there."""
    end = args.index("--") if "--" in args else len(args)
    options: list[str] = []
    for arg in args[:end]:
        if options and options[-1] in ("-hf", "--hf-repo"):
            options[-1:] = ["-m", f"hf:{arg.removeprefix('hf:')}"]
        elif arg != "--debug":
            options.append(arg)
    return [*options, *args[end:]], "--debug" in args[:end]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name; default: the process's) and return its exit status."""
    args, debug = _normalised(sys.argv[1:] if argv is None else argv)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed, and its number would go to the next file that is opened
            setattr(sys, name, open(os.devnull, mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character still gets the rest
    try:
        command = typer.main.get_command(app)
        with command.make_context("llamita", args) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it flushes
        return 141
    except (KeyboardInterrupt, typer.Abort) as interrupt:
        if argv is None:  # the process ends now, and an impatient second Ctrl-C would print a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _fail(130, str(interrupt) or "interrupted", debug)
    except _UsageError as error:
        return _fail(2, f"{error.format_message()} (--help lists the options)", debug)  # type: ignore[attr-defined]
    except LlamitaError as error:
        return _fail(2 if isinstance(error, InvalidArgument) else 1, str(error), debug)
    except OSError as error:
        return _fail(1, f"{error.filename or 'output'}: {error.strerror or error}", debug)
    except MemoryError:
        return _fail(1, "not enough memory: use a smaller context (-c) or model", debug)
    except Exception as error:
        return _fail(1, f"internal error: {type(error).__name__}: {error} (--debug shows where; please report it)", debug)


def _fail(status: int, message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"llamita: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status
