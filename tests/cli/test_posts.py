"""`postd list`, `add`, `update`, `delete` and `watch`: errors before the first request."""

from pathlib import Path

from click.testing import CliRunner

from postd.cli.main import main
from tests.cases import each


def refusal(*arguments: str, status: int, stdin: bytes = b"") -> str:
    """Return the one line of a command that is refused, without `postd: `."""
    result = CliRunner().invoke(main, arguments, input=stdin, prog_name="postd")
    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.startswith("postd: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("postd: ").removesuffix("\n")


@each(
    "arguments, why",
    [
        ("list --basic a --digest b", "give one of --basic and --digest"),
        ("list --login a --bearer-file f", "give one of --login and --bearer-file"),
        ("list --password-stdin", "--password-stdin goes with --basic, --digest or --login"),
        ("list --bearer-file f --password-stdin", "--password-stdin goes with"),
        ("list --client-id x", "--client-id goes with --client-credentials"),
        ("list --basic a --scope x", "--scope goes with --client-credentials"),
        ("list --client-credentials https://i.example", "--client-credentials needs --client-id"),
        ("list --client-credentials https://i.example --client-id x", "needs --client-secret-file"),
        ("list --dpop-key k", "--dpop-key goes with --bearer-file or --client-credentials"),
        ("list --basic a --dpop-key k", "--dpop-key goes with --bearer-file or --client-credentials"),
        ("list --url posts.example", "Invalid value for '--url'"),
        ("list --url http://h/path", "a server's URL has no path"),
        ("list --url http://[::1]:8080", "IPv6"),
        ("list too many", "unexpected extra arguments"),
        ("add", "Missing argument 'TEXT'"),
        ("update 1", "Missing argument 'TEXT'"),
        ("update x text", "'x' is not a valid integer"),
        ("update 0 text", "0 is not in the range"),
        ("delete 9007199254740992", "is not in the range"),
        ("delete", "give an ID, or --author NAME"),
        ("delete 1 --author alice", "give an ID, or --author NAME"),
        ("watch 1", "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_status_2(arguments: str, why: str) -> None:
    assert why in refusal(*arguments.split(), status=2)


@each("command", ["list", "add", "update", "delete", "watch"])
def test_help_names_every_option(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"], prog_name="postd")
    assert result.exit_code == 0
    names = "url basic digest login password-stdin bearer-file client-credentials client-id client-secret-file scope"
    for name in [*names.split(), "resource", "dpop-key", "json"]:
        assert f"--{name} " in result.stdout
    assert "[default: http://127.0.0.1:8080]" in result.stdout


def test_password_without_terminal_names_the_option() -> None:
    assert "give --password-stdin" in refusal("list", "--basic", "alice", status=1)
    assert refusal("list", "--basic", "alice", "--password-stdin", status=1) == "the password is empty"
    assert "control character" in refusal("list", "--digest", "a", "--password-stdin", status=1, stdin=b"x\0\n")


def test_password_in_clear_text_is_refused_before_the_prompt() -> None:
    for option, kind in (("--basic", "Basic"), ("--login", "FormLogin")):
        why = f"http://192.0.2.1: {kind} would be sent in clear text; use an https URL, or Digest"
        assert refusal("list", option, "alice", "--url", "http://192.0.2.1", status=1) == why
    assert "give --password-stdin" in refusal("list", "--digest", "alice", "--url", "http://192.0.2.1", status=1)


def test_unusable_standard_input_is_refused() -> None:
    assert "not UTF-8" in refusal("add", "-", status=1, stdin=b"\xff")
    assert "more than 64 KiB" in refusal("update", "1", "-", status=1, stdin=b"x" * 70_000)


def test_unusable_dpop_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    command = ("list", "--bearer-file", str(tmp_path / "token"), "--dpop-key", str(file))
    assert refusal(*command, status=1) == f"{file}: cannot be read: No such file or directory"
    file.write_text("no key")
    assert refusal(*command, status=1) == f"{file}: is not a private key in PEM or a JWK"


def test_plain_http_issuer_is_refused(tmp_path: Path) -> None:
    options = ["--client-id", "x", "--client-secret-file", str(tmp_path / "secret")]
    line = refusal("list", "--client-credentials", "http://issuer.example", *options, status=1)
    assert line.startswith("issuer: 'http://issuer.example' is not an https URL")
