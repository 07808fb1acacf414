/// The version of the ABI that is in the shared library's name: the major version; while that is 0,
/// the minor version too. Libraries of one such version can take each other's place, the newer for
/// the older: `bw_version_check` has the same rule.
pub fn abi(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    if major == "0" {
        format!("0.{minor}")
    } else {
        major.to_owned()
    }
}
