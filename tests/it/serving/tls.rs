//! Goal: only permitted clients connect, over TLS; nothing sent in the clear counts once a
//! connection is encrypted.
//!
//! Method: an authority and certificates made for each test, in the files that qemu and libnbd use;
//! their own clients; and a client of sockets for requests that those would never send.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams};
use rcgen::{DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose};
use rcgen::{SerialNumber, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Server, Talker, pumice, python_with_libnbd, run, run_ok,
    stand_in, tool, wait_until,
};

/// An authority, and the directories of its certificates.
pub(crate) struct Authority {
    pub(crate) folder: TempDir,
    pub(crate) issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self { folder, issuer: Issuer::new(params, key), certificate }
    }

    /// Creates a directory with a certificate of this authority for `role` (server or client),
    /// altered by `change`; its owner trusts `trusted`.
    pub(crate) fn issue(
        &self,
        name: &str,
        role: &str,
        trusted: &Self,
        change: impl FnOnce(&mut CertificateParams),
    ) -> PathBuf {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("ca-cert.pem"), trusted.certificate.pem()).unwrap();
        fs::write(folder.join(format!("{role}-cert.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{role}-key.pem")), key.serialize_pem()).unwrap();
        folder
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.issue("server", "server", self, |_| {})
    }

    pub(crate) fn client(&self, name: &str) -> PathBuf {
        self.issue(name, "client", self, |_| {})
    }
}

fn serve(drive: &Drive, certificates: &Path, args: &[&str]) -> Server {
    let certificates = certificates.to_str().unwrap();
    drive.serve_with(&[&["--tls-certificates", certificates], args].concat())
}

/// Returns the URI of the server's default export over TLS, for a client with certificates in a
/// directory.
fn uri(server: &Server, certificates: &Path) -> String {
    let uri = server.uri().replacen("nbd+unix", "nbds+unix", 1);
    format!("{uri}&tls-certificates={}", certificates.display())
}

#[test]
fn a_key_that_every_user_can_read_is_remarked() {
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("an authority");
    let certificates = authority.server();
    let drive = Drive::create("64M", &[]);
    for (mode, is_remarked) in [(0o640, false), (0o644, true)] {
        let key = certificates.join("server-key.pem");
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let server = serve(&drive, &certificates, &[]);
        wait_until("the drive is served", || server.stderr().contains("serving"));
        let line = "every user can read the private key: chmod o-r";
        assert_eq!(server.stderr().contains(line), is_remarked, "{}", server.stderr());
        server.stop();
    }
}

#[test]
fn clients_with_a_certificate_come_in_and_others_do_not() {
    let (Some(nbdinfo), Some(nbdcopy)) = (tool("nbdinfo"), tool("nbdcopy")) else { return };
    if stand_in().is_some() {
        return;
    }
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let drive = Drive::create("64M", &[]);
    let image = drive.beside("image");
    fs::write(&image, fs::read(crate::harness::PUMICE).unwrap()).unwrap();
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
    let server = serve(&drive, &authority.server(), &["--tls-verify-peer"]);
    let known = authority.client("known");
    let info = |uri: String| run(Command::new(&nbdinfo).arg("--size").arg(uri), COMMAND_LIMIT);

    run_ok(Command::new(&nbdcopy).arg(&image).arg(uri(&server, &known)));
    let copy = drive.beside("copy");
    run_ok(Command::new(&nbdcopy).arg(uri(&server, &known)).arg(&copy));
    assert!(fs::read(&image).unwrap() == fs::read(&copy).unwrap(), "other bytes over TLS");

    let stranger = other.issue("stranger", "client", &authority, |_| {});
    let expired = authority.issue("expired", "client", &authority, |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let bare = authority.client("bare");
    fs::remove_file(bare.join("client-cert.pem")).unwrap();
    fs::remove_file(bare.join("client-key.pem")).unwrap();
    for (certificates, why) in [
        (&stranger, "UnknownIssuer"),
        (&expired, "certificate expired"),
        (&bare, "sent no certificates"),
    ] {
        let refused = info(uri(&server, certificates));
        assert_ne!(refused.code, Some(0), "{}", certificates.display());
        // Their client may withhold an unsuitable certificate. This one does not.
        if certificates != &bare {
            assert!(list_over_tls(&server, certificates).is_err());
        }
        wait_until(why, || server.stderr().contains(why));
    }
    assert_eq!(list_over_tls(&server, &known).unwrap(), SERVER);
    let plain = info(server.uri());
    assert_ne!(plain.code, Some(0), "in the clear");
    // No other client was disturbed.
    assert_eq!(info(uri(&server, &known)).stdout.trim(), "67108864");
    server.stop();
    drive.assert_checks();
}

/// Guards against a list that is no longer renewed, and admits certificates revoked since.
#[test]
fn a_list_of_revocations_that_has_expired_accepts_no_client() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let (certificates, known) = (authority.server(), authority.client("known"));
    for (next_update, is_accepted) in [(2002, false), (2999, true)] {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(next_update, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&authority.issuer).unwrap().pem().unwrap();
        fs::write(certificates.join("ca-crl.pem"), list).unwrap();
        let server = serve(&drive, &certificates, &["--tls-verify-peer"]);
        let info =
            run(Command::new(&nbdinfo).arg("--size").arg(uri(&server, &known)), COMMAND_LIMIT);
        assert_eq!(info.code == Some(0), is_accepted, "{info:#?}");
        if !is_accepted {
            let is_told = || server.stderr().contains("xpired");
            wait_until("the log names the reason", is_told);
        }
        server.stop();
    }
}

#[test]
fn qemu_connects_over_tcp() {
    let Some(qemu_img) = tool("qemu-img") else { return };
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let args = ["--tls-verify-peer", "--listen", "127.0.0.1:0"];
    let server = serve(&drive, &authority.server(), &args);
    wait_until("the log has the TCP address", || server.stderr().contains("nbds://127.0.0.1:"));
    let said = server.stderr();
    let port = said.split("nbds://127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let known = authority.client("known");
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", known.display());
    let image = format!("driver=nbd,host=localhost,port={port},tls-creds=tls0");
    let mut command = Command::new(qemu_img);
    command.args(["info", "--object", &object, "--image-opts", &image]);
    let said = run_ok(&mut command).stdout;
    assert!(said.contains("67108864 bytes"), "{said}");
    server.stop();
}

#[test]
fn tls_may_be_left_to_the_client() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive, &authority.server(), &["--tls", "allow"]);
    for uri in [server.uri(), uri(&server, &authority.client("client"))] {
        assert_eq!(run_ok(Command::new(&nbdinfo).arg("--size").arg(uri)).stdout.trim(), "67108864");
    }
    server.stop();
}

/// Opens a connection and reads the greeting.
pub(crate) fn connect(server: &Server) -> UnixStream {
    let mut socket = UnixStream::connect(server.socket()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    socket.write_all(&[0, 0, 0, 3]).unwrap();
    socket
}

pub(crate) fn option(number: u8, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT\0\0\0"[..], &[number], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns the type of the next reply to an option, without its data.
pub(crate) fn reply(stream: &mut impl Read) -> io::Result<u32> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let field = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    io::copy(&mut stream.take(field(16).into()), &mut io::sink())?;
    Ok(field(12))
}

/// Requests the list of exports through TLS; returns the type of the first answer.
fn list_over_tls(server: &Server, certificates: &Path) -> io::Result<u32> {
    let mut socket = connect(server);
    socket.write_all(&option(5, b""))?;
    assert_eq!(reply(&mut socket)?, ACK);
    let mut connection = tls_client(certificates);
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    stream.write_all(&option(3, b""))?;
    reply(&mut stream)
}

pub(crate) const ACK: u32 = 1;
const SERVER: u32 = 2;
const ERR_INVALID: u32 = (1 << 31) + 3;
const ERR_TLS_REQD: u32 = (1 << 31) + 5;

#[test]
fn a_server_that_requires_tls_reveals_nothing_before_it() {
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive, &authority.server(), &[]);
    let mut socket = connect(&server);
    for number in [3, 6, 7, 8, 9, 10, 11, 99] {
        socket.write_all(&option(number, b"")).unwrap();
        assert_eq!(reply(&mut socket).unwrap(), ERR_TLS_REQD, "option {number}");
    }
    // The old way to choose an export can be refused only by disconnecting.
    socket.write_all(&option(1, b"")).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    server.stop();
}

/// Guards against the flaw of CVE-2021-3716: a request that an attacker adds after STARTTLS is
/// answered as if it had come encrypted.
#[test]
fn words_behind_starttls_end_the_connection() {
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    for tls in ["allow", "require"] {
        let server = serve(&drive, &authority.server_again(tls), &["--tls", tls]);
        let mut socket = connect(&server);
        socket.write_all(&[option(5, b""), option(3, b"")].concat()).unwrap();
        let mut said = Vec::new();
        let _may_be_reset = socket.read_to_end(&mut said);
        assert_eq!(said, b"", "{tls}");
        server.stop();
    }
}

impl Authority {
    fn server_again(&self, name: &str) -> PathBuf {
        self.issue(name, "server", self, |_| {})
    }
}

/// Guards against the other half of CVE-2021-3716: agreements made in the clear, by any party,
/// still count after STARTTLS.
#[test]
fn options_negotiated_in_the_clear_are_forgotten() {
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive, &authority.server(), &["--tls", "allow"]);
    let mut socket = connect(&server);
    socket.write_all(&option(8, b"")).unwrap();
    assert_eq!(reply(&mut socket).unwrap(), ACK);
    socket.write_all(&option(5, b"")).unwrap();
    assert_eq!(reply(&mut socket).unwrap(), ACK);
    let mut connection = tls_client(&authority.client("client"));
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    stream.write_all(&option(5, b"")).unwrap();
    assert_eq!(reply(&mut stream).unwrap(), ERR_INVALID, "TLS within TLS");
    // Contexts need structured replies, which were agreed on before.
    stream.write_all(&option(10, b"\0\0\0\0\0\0\0\0")).unwrap();
    assert_eq!(reply(&mut stream).unwrap(), ERR_INVALID);
    stream.write_all(&option(7, b"\0\0\0\0\0\0")).unwrap();
    assert_eq!([reply(&mut stream).unwrap(), reply(&mut stream).unwrap()], [3, ACK]);
    // A read of 8 bytes, answered by a simple reply.
    let read = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &[0, 0, 0, 8]].concat();
    stream.write_all(&read).unwrap();
    let mut answer = [0; 24];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], 0x6744_6698_u32.to_be_bytes());
    server.stop();
}

pub(crate) fn tls_client(certificates: &Path) -> rustls::ClientConnection {
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(certificates.join("ca-cert.pem")).unwrap();
    roots.add(authority).unwrap();
    let chain = vec![CertificateDer::from_pem_file(certificates.join("client-cert.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificates.join("client-key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    rustls::ClientConnection::new(Arc::new(config), name).unwrap()
}

#[test]
fn flags_that_would_let_anybody_in_are_refused() {
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let certificates = authority.server();
    let (certificates, empty) = (certificates.to_str().unwrap(), authority.folder.path());
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().unwrap();
    for (args, why) in [
        (&["--listen", "0.0.0.0:0"][..], "or --insecure"),
        (
            &["--listen", "0.0.0.0:0", "--tls", "allow", "--tls-certificates", certificates],
            "or --insecure",
        ),
        (
            &["--tls", "allow", "--tls-certificates", certificates, "--tls-verify-peer"],
            "--tls-verify-peer conflicts with --tls allow",
        ),
        (&["--tls", "require"], "--tls-certificates DIR"),
        (
            &["--tls", "off", "--tls-certificates", certificates],
            "--tls off conflicts with --tls-certificates",
        ),
        (&["--tls-verify-peer"], "--tls-certificates"),
        (&["--tls-certificates", empty.to_str().unwrap()], "server-cert.pem"),
        (&["--unix-mode", "0660"], "--unix"),
    ] {
        let refused = pumice(&[&["serve", path, "--run", "true"], args].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(why), "{args:?}: {}", refused.stderr);
    }
    let allowed = ["serve", path, "--run", "true", "--listen", "0.0.0.0:0", "--insecure"];
    assert_eq!(pumice(&allowed).code, Some(0));
}

/// An administrator who closes a hole by a reload must find it closed.
#[test]
fn a_restart_that_requires_tls_closes_connections_in_the_clear() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let (file, socket) = (drive.beside("drive.toml"), drive.beside("socket"));
    let write = |more: &str| {
        let (path, unix) = (drive.path().display(), socket.display());
        fs::write(&file, format!("paths = [\"{path}\"]\nunix = \"{unix}\"\n{more}")).unwrap();
    };
    write("");
    let mut command = Command::new(PUMICE);
    command.args(["serve", "--config"]).arg(&file);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    let server = Server::start(&mut command, socket.clone());
    let mut plain = connect(&server);
    plain.write_all(&option(7, b"\0\0\0\0\0\0")).unwrap();
    assert_eq!((reply(&mut plain).unwrap(), reply(&mut plain).unwrap()), (3, 1));
    write(&format!("tls-certificates = \"{}\"\n", authority.server().display()));
    server.restart();
    assert_eq!(plain.read(&mut [0]).unwrap(), 0, "the connection in the clear goes on");
    let said = server.stderr();
    assert!(said.contains("TLS is required now"), "{said}");
    let client = uri(&server, &authority.client("client"));
    run_ok(Command::new(nbdinfo).args(["--size", &client]));
    server.stop();
}

/// Two clients, one encrypted; a restart; then each sends a request.
const OVER_A_RESTART: &str = r#"
import nbd, sys
plain, encrypted = nbd.NBD(), nbd.NBD()
encrypted.set_uri_allow_local_file(True)
plain.connect_uri(sys.argv[1])
encrypted.connect_uri(sys.argv[2])
assert encrypted.get_tls_negotiated() and not plain.get_tls_negotiated()
encrypted.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA)
print("connected", flush=True)
while not encrypted.aio_is_closed():
    encrypted.poll(-1)
print("closed", flush=True)
assert plain.pread(4096, 0) == b"x" * 4096
again = nbd.NBD()
again.set_uri_allow_local_file(True)
again.connect_uri(sys.argv[2])
assert again.pread(4096, 0) == b"x" * 4096
"#;

#[test]
fn a_restart_closes_encrypted_connections_and_no_others() {
    let Some(python) = python_with_libnbd() else { return };
    if stand_in().is_some() {
        return;
    }
    let authority = Authority::new("one");
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive, &authority.server(), &["--tls", "allow"]);
    let encrypted = uri(&server, &authority.client("client"));
    let mut clients = Command::new(python);
    clients.args(["-c", OVER_A_RESTART, &server.uri(), &encrypted]);
    let mut clients = Talker::start(&mut clients);
    assert_eq!(clients.next_line(), "connected");
    server.restart();
    assert_eq!(clients.next_line(), "closed");
    clients.finish();
    assert!(server.stderr().contains("restarted clients=1"), "{}", server.stderr());
    server.stop();
}
