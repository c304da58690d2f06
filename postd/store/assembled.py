"""Assemble a store from its parts."""

from typing import Generic, TypeVar

from postd.store.interface import Lifecycle, LoginStore, OperationObserver, PostStore

DatabaseT = TypeVar("DatabaseT", bound=Lifecycle)


class AssembledStore(Generic[DatabaseT]):
    """A `postd.store.interface.Store` made of parts that share a database.

    The methods of the parts are its attributes: a call is not delegated.
    """

    def __init__(self, database: DatabaseT, posts: PostStore, logins: LoginStore) -> None:
        self.database = database
        self.description = database.description
        self.prepare = database.prepare
        self.start = database.start
        self.stop = database.stop

        self.version = posts.version
        self.list_posts = posts.list_posts
        self.get_post = posts.get_post
        self.add_post = posts.add_post
        self.replace_post = posts.replace_post
        self.delete_post = posts.delete_post
        self.list_changes = posts.list_changes
        self.read_posts = posts.read_posts
        self.last_id = posts.last_id
        self.begin_import = posts.begin_import

        self.key = logins.key
        self.use_nonce = logins.use_nonce
        self.add_session = logins.add_session
        self.get_session = logins.get_session
        self.list_sessions = logins.list_sessions
        self.renew_session = logins.renew_session
        self.delete_sessions = logins.delete_sessions
        self.delete_sessions_of = logins.delete_sessions_of
        self.delete_all_sessions = logins.delete_all_sessions
        self.count_failures = logins.count_failures
        self.reserve_attempt = logins.reserve_attempt
        self.release_attempt = logins.release_attempt
        self.add_failure = logins.add_failure
        self.forget_failures = logins.forget_failures
        self.purge_expired = logins.purge_expired

    @property
    def observer(self) -> OperationObserver:
        return self.database.observer

    @observer.setter
    def observer(self, observer: OperationObserver) -> None:
        self.database.observer = observer
