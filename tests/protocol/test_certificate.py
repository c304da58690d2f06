"""The field `Client-Cert`, also as a hostile client would write it, and thumbprints."""

import base64
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.certificate import CLIENT_CERT_MAX_BYTES, certificate_thumbprint, decode_client_cert
from tests.helpers import FIELD_TEXT

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")


@pytest.fixture(scope="module")
def der(certificate: tuple[Path, Path]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate[1].read_text())


def encode(der: bytes) -> bytes:
    return b":%b:" % base64.b64encode(der)


def test_certificate_is_decoded(der: bytes) -> None:
    assert decode_client_cert([encode(der)]) == der


def test_example_of_rfc_9440_is_decoded() -> None:
    """RFC 9440, appendix A."""
    value = (
        b":MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVybWVk"
        b"aWF0ZSBDQTAeFw0yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8Y"
        b"nXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAfBgNV"
        b"HSMEGDAWgBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYm"
        b"RjQGV4YW1wbGUuY29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/kHSB4urmiZ0NX5r5Xa"
        b"rmPk0wmuydBVoU4hBVZ1yhk=:"
    )
    assert decode_client_cert([value]) is not None


def test_anything_but_one_byte_sequence_is_no_certificate(der: bytes) -> None:
    value, text = encode(der), base64.b64encode(der)
    assert decode_client_cert([]) is None
    assert decode_client_cert([value, value]) is None
    others = [
        *(b"", b":", b"::", b":::", text, b":" + text, text + b":", b":AAAA:"),
        *(value + b", " + value, value + b"," + value, value + b";a=1", b" " + value, value + b" ", value + value),
        *(
            value[:-2] + b":",
            value[:-1] + b"=:",
            value[:-1] + b"A:",
            value[:90] + b" " + value[90:],
            b'"' + text + b'"',
        ),
        *(encode(der + b"\0"), encode(der[:-1]), encode(der[1:]), encode(b"0\0"), encode(der * 2), value[:40] + b":"),
        *(ssl.DER_cert_to_PEM_cert(der).encode(), b":" + base64.urlsafe_b64encode(b"\xff" * 3 + der) + b":"),
        *(value.replace(b"M", b"\xe4", 1), value.replace(b"M", b"\0", 1), value.replace(b"A", b"\n", 1)),
    ]
    assert [other for other in others if decode_client_cert([other]) is not None] == []


def test_field_over_8_kib_is_no_certificate(der: bytes) -> None:
    """The length is that of the whole value, and is compared first."""
    assert decode_client_cert([b":" * (CLIENT_CERT_MAX_BYTES + 1)]) is None
    assert decode_client_cert([encode(der).rjust(CLIENT_CERT_MAX_BYTES + 1)]) is None


@given(st.lists(st.lists(st.sampled_from(FIELD_TEXT)).map(bytes), max_size=3))
def test_arbitrary_fields_are_no_certificates(values: list[bytes]) -> None:
    assert decode_client_cert(values) is None


@given(st.data())
def test_altered_certificate_is_decoded_to_itself_or_not_at_all(der: bytes, data: st.DataObject) -> None:
    altered = bytearray(der)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(altered) - 1))
        altered[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    assert decode_client_cert([encode(bytes(altered))]) in (None, bytes(altered))


def test_thumbprint_is_that_of_rfc_8705() -> None:
    """RFC 8705, appendix A."""
    der = base64.b64decode(
        "MIIBBjCBrAIBAjAKBggqhkjOPQQDAjAPMQ0wCwYDVQQDDARtdGxzMB4XDTE4MTAxODEyMzcwOVoXDTIyMDUwMjEyMzcwOVowDzENMAsGA1UE"
        "AwwEbXRsczBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNcnyxwqV6hY8QnhxxzFQ03C7HKW9OylMbnQZjjJ/Au08/coZwxS7LfA4vOLS9Wu"
        "neIXhbGGWvsDSb0tH6IxLm8wCgYIKoZIzj0EAwIDSQAwRgIhAP0RC1E+vwJD/D1AGHGzuri+hlV/PpQEKTWUVeORWz83AiEA5x2eXZOVbUlJ"
        "SGQgjwD5vaUaKlLR50Q2DmFfQj1L+SY="
    )
    assert certificate_thumbprint(der) == "A4DtL2JmUMhAsvJj5tKyn64SqzmuXbMrJa0n761y5v0"
