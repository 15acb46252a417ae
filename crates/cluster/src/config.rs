//! A file of options: each key is an option of the command line without its dashes.
//!
//! ```toml
//! name = "a"
//! listen = "10.0.0.1:7420"
//! join = ["10.0.0.2:7420", "10.0.0.3:7420"]
//! region = "shm:8GiB"
//! keep = true
//!
//! [permissions.team]       # as --permit team:b:read,write and --permit 'team:*:read'
//! b = "read,write"
//! "*" = "read"
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Limit on the length of a file in bytes. A file with a thousand other nodes is shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a configuration file is rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not valid TOML.
    #[error("{}: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and the cause.
        reason: String,
    },
    /// An entry that does not permit anything to a node in a namespace.
    #[error("{}: {key} is a {kind}; [permissions.NAMESPACE] has lines NODE = \"RIGHTS\"", path.display())]
    Grant {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type of its value.
        kind: &'static str,
    },
    /// A value of a type that no option accepts.
    #[error("{}: {key} is a {kind}; an option is a text, a number, true, false, or a list of those", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type of its value.
        kind: &'static str,
    },
}

/// Returns the arguments, with each `--config FILE` replaced by the options in that file.
///
/// # Errors
///
/// A file is rejected.
pub(crate) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>, ConfigError> {
    let mut all = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        let path = match text.strip_prefix("--config=") {
            Some(path) => Some(OsString::from(path)),
            None if text == "--config" => arguments.next(),
            None => None,
        };
        match path {
            Some(path) => all.extend(read(Path::new(&path))?),
            None => all.push(argument),
        }
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Vec<OsString>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        let reason = format!("{bytes} B, a file of options has {FILE_BYTES_MAX} B at most");
        return Err(ConfigError::Parse { path: path.to_owned(), reason });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Parse {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mut arguments = Vec::new();
    for (key, value) in &table {
        match value.as_table().filter(|_| key == "permissions") {
            Some(namespaces) => add_grants(path, namespaces, &mut arguments)?,
            None => add(path, key, value, &mut arguments)?,
        }
    }
    Ok(arguments)
}

/// Adds the permissions by namespace, then by node.
fn add_grants(
    path: &Path,
    namespaces: &toml::Table,
    arguments: &mut Vec<OsString>,
) -> Result<(), ConfigError> {
    for (namespace, nodes) in namespaces {
        let wrong = |value: &toml::Value, key: String| ConfigError::Grant {
            path: path.to_owned(),
            key,
            kind: value.type_str(),
        };
        let by_node = nodes.as_table();
        let by_node = by_node.ok_or_else(|| wrong(nodes, format!("permissions.{namespace:?}")))?;
        for (node, rights) in by_node {
            let words = rights.as_str();
            let words = words
                .ok_or_else(|| wrong(rights, format!("permissions.{namespace:?}.{node:?}")))?;
            arguments.push(format!("--permit={namespace}:{node}:{words}").into());
        }
    }
    Ok(())
}

fn add(
    path: &Path,
    key: &str,
    value: &toml::Value,
    arguments: &mut Vec<OsString>,
) -> Result<(), ConfigError> {
    let option = format!("--{}", key.replace('_', "-"));
    let text = match value {
        toml::Value::Boolean(false) => return Ok(()),
        toml::Value::Boolean(true) => {
            arguments.push(option.into());
            return Ok(());
        }
        toml::Value::Array(values) if !values.iter().any(toml::Value::is_array) => {
            return values.iter().try_for_each(|value| add(path, key, value, arguments));
        }
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        other => {
            let (path, key) = (path.to_owned(), key.to_owned());
            return Err(ConfigError::Value { path, key, kind: other.type_str() });
        }
    };
    arguments.push(format!("{option}={text}").into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_text(text: &str) -> Result<Vec<String>, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        let arguments = ["--socket", "s", "--config", path.to_str().unwrap(), "--fresh"];
        let all = expand(arguments.iter().map(OsString::from).collect())?;
        Ok(all.into_iter().map(|one| one.into_string().unwrap()).collect())
    }

    #[test]
    fn options_stand_where_the_file_was_named() {
        let text =
            "name = 'a'\njoin = ['x:1', 'y:2']\nkeep = true\nplaintext = false\nlease_ms = 5";
        let all = expand_text(text).unwrap();
        assert_eq!(
            all,
            [
                "--socket",
                "s",
                "--join=x:1",
                "--join=y:2",
                "--keep",
                "--lease-ms=5",
                "--name=a",
                "--fresh"
            ]
        );
    }

    #[test]
    fn grants_are_by_namespace_and_node() {
        let text = "keep = true\n[permissions.team]\nb = 'read,write'\n'*' = 'none'\n\
                    [permissions.'']\n'*' = 'read'";
        let all = expand_text(text).unwrap();
        let rules: Vec<&str> = all.iter().filter_map(|one| one.strip_prefix("--permit=")).collect();
        assert_eq!(rules, [":*:read", "team:*:none", "team:b:read,write"]);
        for (text, words) in [
            ("[permissions]\nteam = 'read'", "permissions.\"team\" is a string"),
            ("[permissions.team]\nb = 7", "permissions.\"team\".\"b\" is a integer"),
        ] {
            let error = expand_text(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_no_option_is_refused_with_its_place() {
        for (text, words) in [
            ("name", "line 1"),
            ("name = 1.5", "name is a float"),
            ("[a]\nb = 1", "a is a table"),
            ("join = [[1]]", "join is a array"),
        ] {
            let error = expand_text(text).unwrap_err().to_string();
            assert!(error.contains(words) || words == "line 1", "{error}");
        }
        let error = expand(vec!["--config".into(), "/nowhere/x".into()]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x"), "{error}");
    }
}
