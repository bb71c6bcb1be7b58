//! Connections of an HTTP server, with limits on their number and duration.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Time limit for receiving the headers of a request. The time starts when the connection is accepted or the last reply
/// is sent. Ranks report every two seconds.
const HEAD: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection. After this time the client reconnects.
const WHOLE: Duration = Duration::from_secs(3600);
/// Maximum size of the headers of a request, bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Marks a connection on which a client has proved that it belongs to the run. Handlers get the mark of the connection
/// of a request as an extension.
#[derive(Debug, Clone, Default)]
pub struct TrustMark(Arc<AtomicBool>);

impl TrustMark {
    /// Keeps the connection when others need its place.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct OpenConnection {
    mark: TrustMark,
    task: AbortHandle,
}

/// Serves `routes` on at most `most` connections. If there are more, closes the oldest connection without a
/// [`TrustMark`], or else the new one, and calls `refuse`. `name` is the name of the server in log messages.
pub async fn serve(name: &'static str, listener: TcpListener, routes: Router, most: usize, refuse: impl Fn()) {
    let mut open: VecDeque<OpenConnection> = VecDeque::new();
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a {name} connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if open.len() >= most {
            open.retain(|connection| !connection.task.is_finished());
        }
        if open.len() >= most {
            refuse();
            tracing::debug!(%peer, most, "too many open {name} connections");
            let oldest = open.iter().position(|connection| !connection.mark.is_set());
            match oldest.and_then(|index| open.remove(index)) {
                Some(connection) => connection.task.abort(),
                None => continue,
            }
        }
        tracing::debug!(%peer, "{name} connection accepted");
        let mark = TrustMark::default();
        let routes = routes.clone().layer(Extension(mark.clone()));
        let task = tokio::spawn(async move {
            // After a timeout or a disconnection, the rank repeats the reports that have no reply.
            match tokio::time::timeout(WHOLE, connection(socket, routes)).await {
                Ok(Ok(())) => tracing::debug!(%peer, "{name} connection closed"),
                Ok(Err(error)) => tracing::debug!(%peer, %error, "{name} connection lost"),
                Err(_) => tracing::debug!(%peer, "{name} connection closed after the time limit"),
            }
        });
        open.push_back(OpenConnection { mark, task: task.abort_handle() });
    }
}

async fn connection(socket: TcpStream, routes: Router) -> Result<(), hyper::Error> {
    // Reports are small, and a rank waits for the reply to each report.
    let _ = socket.set_nodelay(true);
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes))
        .await
}
