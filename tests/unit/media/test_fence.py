"""Public servers and nothing else, however the URL is spelled."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.media.fence import Fenced, Rules, check_address, check_url, forbidden, matches

PUBLIC = Rules()
PRIVATE = Rules(allow_private=True)


def refused(url: str, rules: Rules = PUBLIC) -> bool:
    try:
        check_url(url, rules)
    except Fenced as error:
        return error.status == 400
    return False


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254",
        "172.16.0.1", "172.31.255.255", "192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
        "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "100::1", "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:a00:1::", "3fff::1", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "5f00::1", "4000::1",
    ],
)  # fmt: skip
def test_addresses_that_are_no_public_servers(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert forbidden(parsed)
    with pytest.raises(Fenced, match="only public"):
        check_address(parsed, PUBLIC)
    check_address(parsed, PRIVATE)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
        "192.0.1.0", "192.167.255.255", "198.17.255.255", "198.20.0.0", "223.255.255.255",
        "2606:4700:4700::1111", "2a00:1450:4001::1", "2001:200::1", "2001:4860:4860::8888", "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ],
)  # fmt: skip
def test_addresses_of_public_servers(address: str) -> None:
    assert forbidden(ipaddress.ip_address(address)) is None


@given(st.integers(0, 2**32 - 1))
def test_wrapping_an_ipv4_address_changes_nothing(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert bool(forbidden(ipaddress.IPv6Address(prefix + number))) == bool(forbidden(plain))


@given(st.ip_addresses())
def test_never_laxer_than_the_standard_library(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    inner = getattr(address, "ipv4_mapped", None) or address
    if inner.is_private or inner.is_loopback or inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        assert forbidden(address)


@given(st.ip_addresses(v=4), st.sampled_from(["decimal", "hex", "octal", "hex whole", "two parts", "padded"]))
def test_numbers_as_hosts_are_refused_in_every_unusual_form(address: ipaddress.IPv4Address, form: str) -> None:
    number, octets = int(address), address.packed
    spelled = {
        "decimal": str(number),
        "hex whole": hex(number),
        "hex": ".".join(hex(octet) for octet in octets),
        "octal": ".".join(f"0{octet:o}" for octet in octets),
        "two parts": f"{octets[0]}.{number & 0xFFFFFF}",
        "padded": ".".join(f"{octet:04d}" for octet in octets),
    }[form]
    assert refused(f"http://{spelled}/", PRIVATE)


@pytest.mark.parametrize(
    "url",
    [
        "", "a.png", "/a.png", "//host/a", "http:", "http:///a", "http://", "https://?x", "http://#",
        "ftp://example.com/a", "file:///etc/passwd", "gopher://example.com", "blob:0123", "data2:x", "javascript:x",
        "http://user@example.com/", "http://user:pw@example.com/", "http://example.com@127.0.0.1/", "http://@example.com/",
        "http://example.com\\@127.0.0.1/", "http://example.com/a b", "http://example.com/\n", " http://example.com/",
        "http://example.com/\x00", "http://exa\tmple.com/", "http://example.com:99999/", "http://example.com:x/",
        "http://example.com:22/", "http://example.com:6667/", "http://example.com:0/", "http://example.com:25/",
        "http://[::1", "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://[v1.x]/", "http://ex%61mple.com/",
        "http://127.1/", "http://0x7f.1/", "http://0177.0.0.1/", "http://2130706433/", "http://1.2.3.4.5/", "http://1.2.3.256/",
        "http://1.2.3.4../", "http://①②⑦.⓪.⓪.①/", "http://１２７.0.0.1/", "http://a..b/", "http://-a.com/",
        "http://" + "a" * 300 + ".com/", "http://exa$mple.com/",
    ],
)  # fmt: skip
def test_spellings_that_are_refused_whatever_they_lead_to(url: str) -> None:
    assert refused(url, PUBLIC)
    assert refused(url, PRIVATE)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://127.0.0.1:8080/x", "http://127.0.0.1./", "http://[::1]/", "http://localhost/",
        "http://LOCALHOST:80/", "http://localhost./", "http://x.localhost/", "http://db.internal/", "http://printer.local/",
        "http://intranet/", "http://minio:9000/bucket", "http://router.lan/", "http://metadata.google.internal/",
        "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/", "http://[fd00::1]/",
    ],
)  # fmt: skip
def test_hosts_inside_are_for_tests_and_demos_only(url: str) -> None:
    assert refused(url, PUBLIC)
    assert not refused(url, PRIVATE)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://example.com/a.png?sig=x#y", "example.com", 443),
        ("HTTP://Example.COM:8080/", "example.com", 8080),
        ("http://example.com./a", "example.com", 80),
        ("https://bücher.example/a", "xn--bcher-kva.example", 443),
        ("http://a_b.example.com/ü.png", "a_b.example.com", 80),
        ("http://93.184.216.34/", "93.184.216.34", 80),
        ("http://93.184.216.34./", "93.184.216.34", 80),
        ("http://[2606:4700:4700::1111]:8443/", "2606:4700:4700::1111", 8443),
    ],
)
def test_public_urls(url: str, host: str, port: int) -> None:
    target = check_url(url, PUBLIC)
    assert (target.host, target.port) == (host, port)
    assert (target.address is not None) == host[0].isdigit()


class TestLists:
    def test_deny_wins(self) -> None:
        rules = Rules(allow_hosts=("example.com",), deny_hosts=("example.com",))
        assert refused("http://example.com/", rules)

    def test_only_what_is_allowed(self) -> None:
        rules = Rules(allow_hosts=("example.com", "*.cdn.example"))
        assert not refused("http://example.com/", rules)
        assert not refused("http://EXAMPLE.com./", rules)
        assert not refused("http://a.b.cdn.example/", rules)
        assert refused("http://www.example.com/", rules)
        assert refused("http://evilcdn.example/", rules)
        assert refused("http://93.184.216.34/", rules)

    def test_entries(self) -> None:
        assert matches("a.example.com", [".example.com"])
        assert matches("a.example.com", ["*.example.com"])
        assert matches("example.com", [" Example.com. "])
        assert not matches("example.com", [".example.com"])


@given(st.text(max_size=60))
def test_any_text_is_refused_or_leads_outside(text: str) -> None:
    for url in (text, f"http://{text}", f"https://{text}/x"):
        if refused(url):
            continue
        target = check_url(url, PUBLIC)
        assert target.address is None or forbidden(target.address) is None
        assert "." in target.host or ":" in target.host


def test_a_refusal_repeats_no_path_and_no_secret() -> None:
    with pytest.raises(Fenced) as caught:
        check_url("http://user:SECRET@10.0.0.1/SECRET?token=SECRET", PUBLIC)
    assert "SECRET" not in str(caught.value)
