//! Reads credentials and the region from the shared AWS files in `~/.aws`. The object_store crate reads only the
//! environment.

use std::env::VarError;
use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};

use crate::error::redact_setting;

/// Adds the keys and the region of a profile, unless `builder` already has a value for them. `AWS_PROFILE` names the
/// profile. If it is not set, the profile is `default`. Returns `builder` unchanged if it already has an access key, a
/// web identity token file or container credentials.
///
/// # Errors
/// `AWS_PROFILE` is not UTF-8, or the profile that it names has no keys in the credentials file.
pub(crate) fn fill(builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    let other_credentials = [Key::AccessKeyId, Key::WebIdentityTokenFile, Key::ContainerCredentialsRelativeUri];
    if other_credentials.iter().any(|key| builder.get_config_value(key).is_some()) {
        return Ok(builder);
    }
    let (name, named) = match std::env::var("AWS_PROFILE") {
        Ok(name) => (name, true),
        Err(VarError::NotPresent) => ("default".to_string(), false),
        Err(VarError::NotUnicode(_)) => return Err("AWS_PROFILE is not UTF-8".to_string()),
    };
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let config = file("AWS_CONFIG_FILE", "config");
    let keys = section(&credentials, &name);
    if keys.is_empty() && named {
        return Err(format!("AWS_PROFILE is {name:?}, but the AWS credentials file has no keys for it"));
    }
    keys.iter().for_each(|(key, value)| redact_setting(key, value));
    let config_name = if name == "default" { name } else { format!("profile {name}") };
    let all = section(&config, &config_name).into_iter().filter(|(key, _)| key == "region").chain(keys);
    Ok(all.fold(builder, set))
}

fn set(builder: AmazonS3Builder, (key, value): (String, String)) -> AmazonS3Builder {
    let key = match key.as_str() {
        "aws_access_key_id" => Key::AccessKeyId,
        "aws_secret_access_key" => Key::SecretAccessKey,
        "aws_session_token" => Key::Token,
        "region" => Key::Region,
        _ => return builder,
    };
    if builder.get_config_value(&key).is_some() { builder } else { builder.with_config(key, value) }
}

fn file(variable: &str, name: &str) -> String {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".aws").join(name));
    let path = std::env::var_os(variable).map(PathBuf::from).or_else(home);
    path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
}

/// The settings of one section of an INI file.
fn section(text: &str, name: &str) -> Vec<(String, String)> {
    let header = |line: &str| Some(line.strip_prefix('[')?.strip_suffix(']')?.trim().to_string());
    let lines = text.lines().map(str::trim).skip_while(|line| header(line).as_deref() != Some(name)).skip(1);
    let own = lines.take_while(|line| header(line).is_none());
    let setting =
        |line: &str| line.split_once('=').map(|(key, value)| (key.trim().to_lowercase(), value.trim().to_string()));
    own.filter(|line| !line.starts_with(['#', ';'])).filter_map(setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_its_own_settings_only() {
        let text =
            "[default]\naws_access_key_id = A\n\n# no\n[work]\naws_access_key_id=B\naws_secret_access_key = c=d\n";
        let of = |name: &str| section(text, name).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(of("default"), ["A"]);
        assert_eq!(of("work"), ["B", "c=d"]);
        assert_eq!(of("other"), [""; 0]);
    }
}
