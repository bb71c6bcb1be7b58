//! Tests over HTTP against Azurite, Microsoft's emulator of Azure Blob Storage. tests/setup.sh downloads Azurite. The
//! tests are skipped if Azurite or node is missing.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{OBJECTS, behaviour, content, save};
use crate::s3_server::{Fault, Rule, Server};
use bytes::Bytes;
use lambert_store::{Error, Lease, RetryPolicy, Store, StoreSettings, checkpoint};

/// Azurite's default account and its published key.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const CONTAINER: &str = "runs";

/// Creates a container with a signed PUT request, because object_store cannot create one.
const CREATE_CONTAINER: &str = r#"
const [url, account, key, container] = process.argv.slice(1);
const date = new Date().toUTCString(), version = "2021-08-06";
const text = `PUT${"\n".repeat(12)}x-ms-date:${date}\nx-ms-version:${version}\n/${account}/${account}/${container}\nrestype:container`;
const mac = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text).digest("base64");
const headers = { "x-ms-date": date, "x-ms-version": version, authorization: `SharedKey ${account}:${mac}` };
fetch(`${url}/${account}/${container}?restype=container`, { method: "PUT", headers })
    .then(async (answer) => { if (!answer.ok) throw Error(`${answer.status} ${await answer.text()}`); })
    .catch((error) => { console.error(error); process.exit(1); });
"#;

struct Azurite {
    process: Child,
    /// Output of the process. Azurite exits if this pipe is closed.
    _output: BufReader<ChildStdout>,
    url: String,
}

impl Azurite {
    /// Starts a server on a free port with an empty container. Returns `None` if Azurite is not installed.
    fn start() -> Option<Self> {
        let home = |name: &str| std::env::var(name).ok();
        let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")? + "/.cache"))?;
        let folder = std::env::var("LAMBERT_TEST_AZURITE").unwrap_or(cache + "/lambert/azurite-3.33.0");
        let program = PathBuf::from(folder).join("node_modules/.bin/azurite-blob");
        if !program.exists() {
            eprintln!("SKIPPED: there is no Azurite; tests/setup.sh fetches one where npm is");
            return None;
        }
        // The kernel kills the server when the test process ends for any reason.
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.split_once("listens on ")?.1.trim().to_owned()));
        let server = Self { process, _output: output, url: url.expect("Azurite says where it listens") };
        let created =
            Command::new("node").args(["-e", CREATE_CONTAINER, &server.url, ACCOUNT, KEY, CONTAINER]).status();
        assert!(created.unwrap().success(), "the container cannot be created");
        Some(server)
    }

    fn store(&self, prefix: &str, key: &str) -> Store {
        Self::store_at(&self.url, prefix, key)
    }

    fn store_at(url: &str, prefix: &str, key: &str) -> Store {
        let endpoint = format!("{url}/{ACCOUNT}");
        let options = [
            ("azure_storage_account_name", ACCOUNT),
            ("azure_storage_account_key", key),
            ("azure_storage_endpoint", &endpoint),
            ("allow_http", "true"),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let settings = StoreSettings { retry_policy: RetryPolicy::default(), options };
        Store::open_with(&format!("az://{CONTAINER}/{prefix}"), settings).unwrap()
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One test makes all checks, because the server takes two seconds to start.
#[test]
fn azure_blob_storage_behaves_like_every_store() {
    let Some(server) = Azurite::start() else { return };
    behaviour::run_all_checks(&server.store("some/prefix", KEY));

    let store = server.store("large", KEY);
    let bytes: Bytes = (0..40_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    store.put("object", bytes.clone()).unwrap();
    let mut read = Vec::new();
    store.read_pieces("object", bytes.len() as u64, |piece| read.extend_from_slice(piece)).unwrap();
    assert!(read == bytes, "an object that goes in parts comes back");

    // The response to the commit of the block list is lost. The retry finds no blocks.
    let proxy = Server::in_front_of(server.url.trim_start_matches("http://").parse().unwrap());
    let method = "PUT".parse().unwrap();
    proxy.fail(Rule { method, contains: "comp=blocklist", after: 0, times: 1, fault: Fault::LoseAnswer });
    Azurite::store_at(&proxy.endpoint(), "large", KEY).put("committed", bytes.clone()).unwrap();
    assert_eq!((proxy.clear(), store.head("committed").unwrap()), (1, Some(bytes.len() as u64)));

    let run = server.store("run", KEY);
    let threads: Vec<_> =
        (0..8).map(|_| run.clone()).map(|run| std::thread::spawn(move || Lease::take(&run))).collect();
    let mut attempts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap().attempt()).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, (1..=8).collect::<Vec<_>>(), "of many writers one creates");
    let lease = Lease::take(&run).unwrap();
    let saved = [50, 100, 150].map(|step| save(&run, &lease, step));
    assert_eq!(checkpoint::prune(&run, 1).unwrap().checkpoints, saved[..2]);
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    let (name, verified) = found.unwrap();
    assert_eq!((&name, passed_over), (&saved[2], vec![]));
    assert_eq!(checkpoint::read_object(&run, &verified.manifest, OBJECTS[0]).unwrap(), content(OBJECTS[0], 150, 9));

    let wrong = "d3Jvbmd3cm9uZ3dyb25nd3Jvbmd3cm9uZw==";
    let error = server.store("run", wrong).put("object", Bytes::new()).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("az://runs/run/object"), "{error:?}");
}
