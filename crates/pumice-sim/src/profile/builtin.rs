//! The profiles included in the program.

use pumice_drive::base::near::nearest;

/// Expands to the id and the text of each built-in profile.
macro_rules! profiles {
    ($($id:literal),* $(,)?) => {
        [$(($id, include_str!(concat!("../profiles/", $id, ".toml")))),*]
    };
}

/// The built-in profiles: id and text.
pub const PROFILES: [(&str, &str); 14] = profiles![
    "micro-center-64",
    "corsair-force-100",
    "ocz-agility-2-100",
    "ocz-vertex-2-50",
    "intel-x25-e-32",
    "intel-x25-m-g1-80",
    "intel-x25-m-g2-160",
    "indilinx-barefoot-120",
    "jmicron-jmf602b",
    "samsung-slc-64",
    "toshiba-128",
    "hdd-2010",
    "generic-nvme-tlc-1tb",
    "compressing-nvme-1tb",
];

/// Parts shared by several profiles: id and text.
pub(super) const PARTS: [(&str, &str); 2] = [
    ("sandforce-sf-1200", include_str!("../profiles/parts/sandforce-sf-1200.toml")),
    ("mlc-34nm", include_str!("../profiles/parts/mlc-34nm.toml")),
];

/// Returns the message for an unknown name, with suggestions of similar names.
pub(super) fn not_found(typed: &str) -> String {
    let ids = PROFILES.map(|(id, _)| id);
    let slip = nearest(typed, &ids);
    let letters = |text: &str| text.to_lowercase().replace(['-', '_', ' '], "");
    let wanted = letters(typed);
    let near = ids
        .into_iter()
        .filter(|id| Some(*id) == slip || (!wanted.is_empty() && letters(id).contains(&wanted)));
    let near: Vec<&str> = near.collect();
    let hint =
        if near.is_empty() { ".".into() } else { format!(", did you mean {}?", near.join(" or ")) };
    format!("no drive or file is called {typed}{hint} Drives: {}", ids.join(", "))
}
