//! A local S3 server that stores objects in a directory, behind a TCP proxy that injects faults.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

mod proxy;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use lambert_store::{RetryPolicy, Store, StoreSettings};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};

pub const BUCKET: &str = "runs";
pub const ACCESS_KEY: &str = "AKIATESTTESTTEST";
pub const SECRET_KEY: &str = "verysecretkeyverysecretkey";

/// Fault injected into a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// The request is not executed. The response has this HTTP status and this S3 error code.
    Refuse(u16, &'static str),
    /// The request is not executed. The response has status 200 and this body.
    Answer(&'static str),
    /// The connection is reset in the middle of the request body, so the server never receives the whole body.
    Reset,
    /// The request is executed, but the connection is reset without a response.
    LoseAnswer,
    /// The response body stops in the middle and the connection is reset.
    CutBody,
    /// The response body is truncated, and its Content-Length matches the truncated body.
    ShortBody,
    /// The response body is corrupted but keeps its length.
    WrongBody,
    /// Nothing is sent for this time, then the connection is reset.
    Stall(Duration),
}

/// Selects the requests that a fault hits.
#[derive(Debug, Clone)]
pub struct Rule {
    pub method: Method,
    /// Substring of path and query.
    pub contains: &'static str,
    /// Number of matching requests that pass first.
    pub after: usize,
    pub times: usize,
    pub fault: Fault,
}

/// Injects faults into random requests, with a given probability and seed. Each fault is chosen at random from a list.
#[derive(Debug, Clone)]
pub struct RandomFaults {
    pub per_mille: u64,
    pub faults: Vec<Fault>,
    pub seed: u64,
}

/// Action that a test runs between two requests.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Layer {
    rules: Mutex<Vec<Rule>>,
    /// Substring of method and target, number of matching requests that pass first, and the action that runs before the
    /// next matching request.
    hook: Mutex<Option<(&'static str, usize, Hook)>>,
    random_faults: Mutex<Option<RandomFaults>>,
    seen: Mutex<Vec<String>>,
    hit: Mutex<usize>,
    /// Limit of the rate of a response, bytes per second. 0: none.
    rate: AtomicU64,
    /// Limit of the rate of all request bodies together, bytes per second. 0: none.
    upload_rate: AtomicU64,
    /// The link that request bodies share if their rate is limited.
    uplink: tokio::sync::Mutex<()>,
    /// True if the server ignores If-None-Match in PUT requests, like a store that does not support it.
    unconditional: AtomicBool,
}

pub struct Server {
    address: SocketAddr,
    layer: Arc<Layer>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    /// Serves `folder`, which contains the bucket [`BUCKET`], on `port` of this machine. Port 0 means any free port.
    pub fn start(folder: &Path, port: u16) -> Self {
        Self::start_at(folder, "127.0.0.1", port)
    }

    /// Like [`Server::start`], on another local address.
    pub fn start_at(folder: &Path, address: &str, port: u16) -> Self {
        std::fs::create_dir_all(folder.join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let (service, layer) = (builder.build(), Arc::new(Layer::default()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listen = |address, port| runtime.block_on(tokio::net::TcpListener::bind((address, port))).unwrap();
        let (behind, front) = (listen("127.0.0.1", 0), listen(address, port));
        let (server, address) = (behind.local_addr().unwrap(), front.local_addr().unwrap());
        runtime.spawn(accept(behind, service, layer.clone(), folder.to_owned()));
        runtime.spawn(proxy::serve(front, server, layer.clone()));
        Self { address, layer, _runtime: runtime }
    }

    /// Serves only the proxy, in front of another server.
    pub fn in_front_of(server: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let front = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let (address, layer) = (front.local_addr().unwrap(), Arc::new(Layer::default()));
        runtime.spawn(proxy::serve(front, server, layer.clone()));
        Self { address, layer, _runtime: runtime }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Opens the store at `prefix` of the bucket with short timeouts.
    pub fn store(&self, prefix: &str) -> Store {
        self.store_with(prefix, SECRET_KEY, fast_retries())
    }

    pub fn store_with(&self, prefix: &str, secret: &str, retry_policy: RetryPolicy) -> Store {
        let options = [
            ("aws_endpoint", self.endpoint()),
            ("aws_region", "us-east-1".to_string()),
            ("aws_access_key_id", ACCESS_KEY.to_string()),
            ("aws_secret_access_key", secret.to_string()),
        ];
        let options = options.map(|(key, value)| (key.to_string(), value)).to_vec();
        Store::open_with(&format!("s3://{BUCKET}/{prefix}"), StoreSettings { retry_policy, options }).unwrap()
    }

    /// Environment variables for programs that use this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }

    /// Number of requests hit by a fault since the last [`Server::clear`].
    pub fn hits(&self) -> usize {
        *self.layer.hit.lock().unwrap()
    }

    /// From now on, create-only writes replace existing objects.
    pub fn ignore_conditions(&self) {
        self.layer.unconditional.store(true, Ordering::SeqCst);
    }

    /// From now on, sends each response at this rate, as over a slow network.
    pub fn limit_rate(&self, bytes_per_second: u64) {
        self.layer.rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// From now on, all request bodies share this rate, as over a slow network.
    pub fn limit_upload_rate(&self, bytes_per_second: u64) {
        self.layer.upload_rate.store(bytes_per_second, Ordering::SeqCst);
    }

    pub fn fail(&self, rule: Rule) {
        self.layer.rules.lock().unwrap().push(rule);
    }

    /// Runs `hook` once. Of the requests whose method and target contain `contains`, the first `after` pass. The hook
    /// runs before the next one.
    pub fn before(&self, contains: &'static str, after: usize, hook: impl FnOnce() + Send + 'static) {
        *self.layer.hook.lock().unwrap() = Some((contains, after, Box::new(hook)));
    }

    /// True if a hook has not run yet.
    pub fn has_hook(&self) -> bool {
        self.layer.hook.lock().unwrap().is_some()
    }

    pub fn random_faults(&self, random_faults: Option<RandomFaults>) {
        *self.layer.random_faults.lock().unwrap() = random_faults;
    }

    /// Removes all faults. Returns the number of requests that a fault hit since the last call.
    pub fn clear(&self) -> usize {
        self.layer.rules.lock().unwrap().clear();
        self.random_faults(None);
        std::mem::take(&mut self.layer.hit.lock().unwrap())
    }

    /// Method and path of every request since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.layer.seen.lock().unwrap())
    }
}

/// Retry policy with backoffs of a few milliseconds, for fast tests.
pub fn fast_retries() -> RetryPolicy {
    RetryPolicy {
        total_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(2),
        initial_backoff: Duration::from_millis(2),
        max_backoff: Duration::from_millis(20),
    }
}

async fn accept(listener: tokio::net::TcpListener, service: S3Service, layer: Arc<Layer>, folder: PathBuf) {
    // s3s-fs first checks whether an object exists and then writes it. S3 does both in one atomic operation, hence this
    // lock.
    let creating = Arc::new(tokio::sync::Mutex::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        let (service, creating) = (service.clone(), creating.clone());
        let (layer, folder) = (layer.clone(), folder.clone());
        let answer = move |request: Request<Incoming>| {
            if layer.unconditional.load(Ordering::SeqCst) && request.headers().contains_key("if-none-match") {
                // The header is signed and cannot be removed, so the existing object is deleted instead.
                let _ = std::fs::remove_file(folder.join(request.uri().path().trim_start_matches('/')));
            }
            answer(request, service.clone(), creating.clone())
        };
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(socket), hyper::service::service_fn(answer));
        tokio::spawn(connection);
    }
}

async fn answer(
    request: Request<Incoming>,
    service: S3Service,
    creating: Arc<tokio::sync::Mutex<()>>,
) -> std::io::Result<Response<s3s::Body>> {
    let creates = request.headers().contains_key("if-none-match") && request.method() == Method::PUT;
    let _turn = if creates { Some(creating.lock().await) } else { None };
    hyper::service::Service::call(&service, request).await.map_err(|_| proxy::closed())
}

impl Layer {
    /// Takes and returns the hook if it is due before this request.
    fn hook(&self, method: &str, target: &str) -> Option<Hook> {
        let mut hook = self.hook.lock().unwrap();
        let (contains, after, _) = hook.as_mut()?;
        if !format!("{method} {target}").contains(*contains) {
            return None;
        }
        if *after > 0 {
            *after -= 1;
            return None;
        }
        hook.take().map(|(_, _, hook)| hook)
    }

    fn fault(&self, method: &str, target: &str) -> Option<Fault> {
        self.seen.lock().unwrap().push(format!("{method} {target}"));
        let fault = self.by_rule(method, target).or_else(|| self.by_chance());
        *self.hit.lock().unwrap() += usize::from(fault.is_some());
        fault
    }

    fn by_rule(&self, method: &str, target: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let rule =
            rules.iter_mut().find(|rule| rule.times > 0 && rule.method == method && target.contains(rule.contains))?;
        if rule.after > 0 {
            rule.after -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.fault)
    }

    fn by_chance(&self) -> Option<Fault> {
        let mut random_faults = self.random_faults.lock().unwrap();
        let RandomFaults { per_mille, faults, seed } = random_faults.as_mut()?;
        // A linear congruential generator with Knuth's multiplier. Only its upper bits are random enough.
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = *seed >> 33;
        (drawn % 1000 < *per_mille).then(|| faults[(drawn / 1000) as usize % faults.len()])
    }
}
