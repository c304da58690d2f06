"""Plugins of Twisted: the command `twistd postd`, and the checker `--auth postd:PATH` of any program.

Listing plugins imports nothing of postd: modules are named as text, or imported when they are needed.
"""

from twisted.application.service import ServiceMaker
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.strcred import ICheckerFactory, InvalidAuthArgumentString
from twisted.plugin import IPlugin
from zope.interface import implementer

postd = ServiceMaker("postd", "postd.daemon.tap", "Keep short text posts behind a JSON API.", "postd")


@implementer(ICheckerFactory, IPlugin)
class UserFileCheckerFactory:
    """Makes `postd.auth.user_file_checker.UserFileChecker`, for `--auth postd:PATH`."""

    authType = "postd"
    authHelp = """
Names and passwords of a postd user file, a superset of Apache's htpasswd:
Argon2id and bcrypt hashes, as `postd user add` and `htpasswd -B` write them.
The file is reloaded when it changes.

Failed logins are not limited, because the credentials do not have the
client's address: the program has to limit guesses itself.
"""
    argStringFormat = "Path of a postd user file."
    credentialInterfaces = (IUsernamePassword,)

    def generateChecker(self, argstring: str) -> ICredentialsChecker:
        """Return the checker of a user file.

        Raises:
            InvalidAuthArgumentString: the file cannot be used; `str()` names file and line.
        """
        from postd.auth.user_file_checker import UserFileChecker  # noqa: PLC0415 - as the docstring above says

        if not argstring:
            raise InvalidAuthArgumentString("postd: expected the path of a user file, as in postd:/etc/postd/users")
        try:
            return UserFileChecker(argstring)
        except ValueError as error:
            raise InvalidAuthArgumentString(str(error)) from None


user_file_checker = UserFileCheckerFactory()
