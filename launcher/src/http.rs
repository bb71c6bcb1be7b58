//! Connections of an HTTP server, with limits on their number and duration.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Time limit for receiving the headers of a request. The time starts when the connection is accepted or the last reply
/// is sent. Ranks report every two seconds.
const HEAD: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection. After this time the client reconnects.
const WHOLE: Duration = Duration::from_secs(3600);
/// Maximum size of the headers of a request, bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// Serves `routes` on at most `most` connections. Closes further connections and reports them to `refuse`. `name` is the
/// name of the server in log messages.
pub async fn serve(name: &'static str, listener: TcpListener, routes: Router, most: usize, refuse: impl Fn()) {
    let permits = Arc::new(Semaphore::new(most));
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a {name} connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => {
                tracing::debug!(%peer, "{name} connection accepted");
                let routes = routes.clone();
                tokio::spawn(async move {
                    // After a timeout or a disconnection, the rank repeats the reports that have no reply.
                    match tokio::time::timeout(WHOLE, connection(socket, routes)).await {
                        Ok(Ok(())) => tracing::debug!(%peer, "{name} connection closed"),
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "{name} connection lost"),
                        Err(_) => tracing::debug!(%peer, "{name} connection closed after the time limit"),
                    }
                    drop(permit);
                });
            }
            Err(_) => {
                tracing::debug!(%peer, most, "{name} connection refused: too many open connections");
                refuse();
            }
        }
    }
}

async fn connection(socket: TcpStream, routes: Router) -> Result<(), hyper::Error> {
    // Reports are small, and a rank waits for the reply to each report.
    let _ = socket.set_nodelay(true);
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes))
        .await
}
