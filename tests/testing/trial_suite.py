"""`postd.testing` under plain `trial`: `python -m twisted.trial tests.testing.trial_suite`, as .ci/run has it.

pytest does not collect it, and has no part in it: `trial` itself reports what a test leaves in the reactor.
"""

from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource

from postd.client import Basic, Change, ChangeKind, Digest, ProblemError, SignInError
from postd.protect import Protection, identity
from postd.testing import Issuer, PostServer, Provider, Server, basic, bearer, write_users
from postd.testing.serving import PUMP_INTERVAL_S


class Name(Resource):
    """Shows the name of the client."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        client = identity(request)
        assert client is not None
        return client.name.encode()


class ApplicationTests(TestCase):
    """An application behind `postd.protect`, in memory."""

    on_port = False

    async def setUp(self) -> None:  # type: ignore[override] # trial waits for it
        self.issuer = Issuer(reactor)
        await self.issuer.start()
        self.addCleanup(self.issuer.stop)
        users = write_users(self.mktemp(), {"alice": "wonderland", "bob": "builder"})
        trusted = self.issuer.trusted(read_scope="read")
        protection = Protection(reactor, users=users, issuers=[trusted], sign_in="/sign-in")
        await protection.start()
        self.addCleanup(protection.stop)
        root = Resource()
        root.putChild(b"", protection.protect(Name(), "digest", "bearer", "basic", "session"))
        root.putChild(b"sign-in", protection.pages())
        self.server = Server(reactor, root, on_port=self.on_port)
        await self.server.start()
        self.addCleanup(self.server.stop)

    async def get(self, auth: Any = None, headers: Any = None) -> tuple[int, str]:
        response = await self.server.client(auth).get(f"{self.server.url}/", headers=headers)
        return response.code, await response.text()

    async def test_each_scheme_lets_its_user_in(self) -> None:
        token = self.issuer.sign(sub="carol", scope="read")
        session = await self.server.sign_in("bob", "builder", path="/sign-in")
        self.assertEqual(await self.get(Digest("alice", "wonderland")), (200, "alice"))
        self.assertEqual(await self.get(headers=basic("bob", "builder")), (200, "bob"))
        self.assertEqual(await self.get(headers=bearer(token)), (200, "carol"))
        self.assertEqual(await self.get(headers=session), (200, "bob"))

    async def test_wrong_credentials_are_refused(self) -> None:
        self.assertEqual((await self.get())[0], 401)
        self.assertEqual((await self.get(Basic("alice", "x")))[0], 401)
        self.assertEqual((await self.get(headers=bearer(self.issuer.sign(exp=1))))[0], 401)
        self.assertEqual((await self.get(headers=bearer(self.issuer.sign(sub=None))))[0], 401)
        self.assertEqual((await self.get(headers=bearer(self.issuer.sign(scope="write"))))[0], 403)
        with self.assertRaises(SignInError):
            await self.server.sign_in("alice", "x", path="/sign-in")

    async def test_stub_treq_needs_no_flush(self) -> None:
        treq = self.server.treq
        response = await treq.get("http://anything.example/", auth=("alice", "wonderland"))
        self.assertEqual(await treq.text_content(response), "alice")


class ProviderTests(TestCase):
    """An application whose users sign in at an OpenID provider."""

    async def test_user_of_the_provider_is_let_in(self) -> None:
        provider = Provider(reactor)
        await provider.start()
        self.addCleanup(provider.stop)
        async with Protection(reactor, providers=[provider.trusted()], sign_in="/sign-in") as protection:
            root = Resource()
            root.putChild(b"", protection.protect(Name(), "session"))
            root.putChild(b"sign-in", protection.pages())
            async with Server(reactor, root) as server:
                session = await provider.sign_in_at(server, path="/sign-in")
                response = await server.client().get(server.url, headers=session)
                self.assertEqual(await response.text(), "alice")


class ApplicationOnPortTests(ApplicationTests):
    """The same, on a port."""

    on_port = True


class PostServerTests(TestCase):
    """A whole server, and clients of it."""

    on_port = False

    async def setUp(self) -> None:  # type: ignore[override] # trial waits for it
        users = write_users(self.mktemp(), {"alice": "wonderland"})
        self.server = PostServer(reactor, '[api]\nwrite = ["digest", "basic"]', users=users, on_port=self.on_port)
        await self.server.start()
        self.addCleanup(self.server.stop)

    async def test_posts_are_added_and_listed(self) -> None:
        posts = self.server.posts(Digest("alice", "wonderland"))
        self.assertEqual(await posts.add("hello"), 1)
        self.assertEqual([post.post async for post in posts.list()], ["hello"])

    async def test_posts_have_their_author(self) -> None:
        posts = self.server.posts(Basic("alice", "wonderland"))
        watch = posts.watch(after=0, meta=True)
        post = await posts.get(await posts.add("hello"), meta=True)
        self.assertEqual((post.author, post.created), ("alice", post.updated))
        change = await anext(watch)
        self.assertEqual(change, Change(1, ChangeKind.ADDED, post.id, "hello", post.created, post.updated, "alice"))

    async def test_write_without_credentials_is_refused(self) -> None:
        with self.assertRaises(ProblemError) as caught:
            await self.server.posts().add("hello")
        self.assertEqual(caught.exception.status, 401)

    async def test_change_is_seen_by_a_watch(self) -> None:
        posts = self.server.posts(Basic("alice", "wonderland"))
        watch = posts.watch(after=0)
        post_id = await posts.add("hello")
        self.assertEqual(await anext(watch), Change(1, ChangeKind.ADDED, post_id, "hello"))

    async def test_open_event_stream_ends_with_the_server(self) -> None:
        response = await self.server.client().get(f"{self.server.url}/post/events", unbuffered=True)
        self.assertEqual(response.code, 200)


class PostServerOnPortTests(PostServerTests):
    """The same, on a port."""

    on_port = True


class ThrottledPostServerTests(TestCase):
    """A server that is stopped while many wrong passwords are verified."""

    async def test_logins_that_wait_for_the_throttle_end_with_the_server(self) -> None:
        users = write_users(self.mktemp(), {"alice": "wonderland"})
        async with PostServer(reactor, users=users) as server:
            for number in range(50):
                asking: Any = server.client().get(f"{server.url}/basic", headers=basic("alice", f"wrong-{number}"))
                asking.addErrback(lambda _: None)
            await deferLater(reactor, PUMP_INTERVAL_S * 2)
