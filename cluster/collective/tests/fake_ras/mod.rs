//! Server that speaks the protocol of NCCL's RAS service.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// What a server does.
#[derive(Debug, Clone)]
pub enum Service {
    /// Answers with this JSON.
    Answers(String),
    /// Two services at one address: the first n connections reach the service of another job.
    Shared(usize, String),
    /// NCCL before 2.28.7, which has no JSON.
    WithoutJson,
    /// Accepts connections and does not answer.
    Hangs,
}

/// Starts a server. It ends with the test program. Returns its address.
pub fn start(service: Service) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (number, connection) in listener.incoming().enumerate() {
            let service = match service.clone() {
                // A communicator of another job.
                Service::Shared(others, _) if number < others => Service::Answers(communicator(&[7])),
                Service::Shared(_, answer) => Service::Answers(answer),
                service => service,
            };
            thread::spawn(move || serve(connection.unwrap(), &service));
        }
    });
    address
}

fn serve(mut connection: TcpStream, service: &Service) {
    let lines = BufReader::new(connection.try_clone().unwrap()).lines();
    let mut is_json = false;
    for line in lines.map_while(Result::ok) {
        let answer = match (line.as_str(), service) {
            (_, Service::Hangs) => return thread::sleep(Duration::from_secs(60)),
            ("CLIENT PROTOCOL 2", _) => "SERVER PROTOCOL 2\n",
            ("SET FORMAT json", Service::Answers(_)) => {
                is_json = true;
                "OK\n"
            }
            ("STATUS", Service::Answers(json)) if is_json => {
                let _ = connection.write_all(json.as_bytes());
                return;
            }
            (line, _) if line.starts_with("TIMEOUT ") => "OK\n",
            _ => "ERROR: Unknown command\n",
        };
        connection.write_all(answer.as_bytes()).unwrap();
    }
}

/// JSON of a communicator. Each rank is in this process and has started `counts[rank]` all-reduces.
pub fn communicator(counts: &[u64]) -> String {
    let rank = |(rank, count): (usize, &u64)| {
        let process = std::process::id();
        format!(
            r#"{{"rank": {rank}, "host": "127.0.0.1", "pid": {process}, "cuda_dev": {rank}, "nvml_dev": {rank},
            "status": {{"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false}},
            "collective_counts": {{"AllReduce": {count}}}}}"#
        )
    };
    let ranks: Vec<String> = counts.iter().enumerate().map(rank).collect();
    format!(
        r#"{{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{{"size": {}, "ranks_count": {0},
        "missing_ranks_count": 0, "ranks": [{}], "missing_ranks": []}}], "ras": {{"timeouts_count": 0}}}}"#,
        counts.len(),
        ranks.join(",")
    )
}
