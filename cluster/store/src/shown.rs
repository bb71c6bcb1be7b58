//! URLs in messages.

/// Returns a URL with `...` in place of the user name, the password, the query and the fragment, which can be
/// credentials. Keeps the container of `abfss://CONTAINER@ACCOUNT`. Returns a path unchanged.
///
/// The URL is not parsed, because a secret can make it invalid: those of AWS contain slashes.
#[must_use]
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // Without a colon, this is the path before an at sign, or a container.
    let is_secret = |user: &str| user.contains(':') || !(user.contains('/') || scheme.starts_with("abfs"));
    let rest = match rest.rsplit_once('@') {
        // The at sign can belong to the query, so its end is not shown. Nor is the start, if it can have a password.
        Some((user, _)) if user.contains(['?', '#']) => if user.contains(':') { "..." } else { rest }.to_owned(),
        Some((user, after)) if is_secret(user) => format!("...@{after}"),
        _ => rest.to_owned(),
    };
    match rest.find(['?', '#']) {
        Some(end) => format!("{scheme}://{}...", &rest[..=end]),
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn credentials_are_cut() {
        for (url, expected) in [
            ("s3://AKIA:wJalrXU/tnFEMI@bucket/data", "s3://...@bucket/data"),
            ("s3://AKIA:wJal@rXU@bucket/data", "s3://...@bucket/data"),
            ("s3://AKIA:wJa?lrXU@bucket/data", "s3://..."),
            ("gs://user@bucket/data", "gs://...@bucket/data"),
            ("az://c/data?sv=2024&sig=hunter2", "az://c/data?..."),
            ("az://c/data?sig=hun@ter2", "az://c/data?..."),
            ("az://c/data?se=10:00&sig=hun@ter2", "az://..."),
            ("gs://bucket/x#hunter2", "gs://bucket/x#..."),
            ("abfss://container:hunter2@account.dfs.core.windows.net/x", "abfss://...@account.dfs.core.windows.net/x"),
        ] {
            assert_eq!(shown(url), expected);
            assert_eq!(shown(expected), expected);
        }
    }

    #[test]
    fn other_urls_and_paths_are_unchanged() {
        for url in [
            "s3://bucket/run@2/x:y",
            "abfss://container@account.dfs.core.windows.net/x",
            "file:///srv/run",
            "runs/a:b@c?#",
            "",
        ] {
            assert_eq!(shown(url), url);
        }
    }
}
