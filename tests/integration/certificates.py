"""A certificate authority that lives for one test, and a server certificate of it for the loopback."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SPAN = dt.timedelta(days=1)


def authority(folder: Path) -> tuple[Path, Path, Path]:
    """Writes a CA, a certificate and its key into the folder; their paths."""
    now = dt.datetime.now(dt.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def start(name: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - SPAN).not_valid_after(now + SPAN)

    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ca = start("authority of a test", ca_key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    leaf = start("server of a test", key.public_key()).add_extension(names, critical=False)
    leaf = leaf.add_extension(issued_by, critical=False)
    written = {
        "ca.pem": ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "cert.pem": leaf.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "key.pem": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
