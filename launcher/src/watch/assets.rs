//! Files of the page.

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub path: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files.
pub const ASSETS: [Asset; 11] = [
    asset("/", HTML, include_str!("assets/index.html")),
    asset("/style.css", CSS, include_str!("assets/style.css")),
    asset("/app.js", SCRIPT, include_str!("assets/app.js")),
    asset("/charts.js", SCRIPT, include_str!("assets/charts.js")),
    asset("/curves.js", SCRIPT, include_str!("assets/curves.js")),
    asset("/dom.js", SCRIPT, include_str!("assets/dom.js")),
    asset("/marks.js", SCRIPT, include_str!("assets/marks.js")),
    asset("/panels.js", SCRIPT, include_str!("assets/panels.js")),
    asset("/table.js", SCRIPT, include_str!("assets/table.js")),
    asset("/uplot.js", SCRIPT, include_str!("../../../third-party/uplot/uPlot.iife.min.js")),
    asset("/uplot.css", CSS, include_str!("../../../third-party/uplot/uPlot.min.css")),
];

const fn asset(path: &'static str, content_type: &'static str, text: &'static str) -> Asset {
    Asset { path, content_type, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of the files in the package uplot 1.6.32 of the npm registry.
    const UPLOT: [(&str, &str); 2] = [
        ("/uplot.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("/uplot.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ];

    #[test]
    fn the_chart_library_is_unmodified() {
        for (path, sha256) in UPLOT {
            let asset = ASSETS.iter().find(|asset| asset.path == path).unwrap();
            assert_eq!(lambert_store::hash::sha256(asset.text.as_bytes()), sha256, "{path}");
        }
    }

    #[test]
    fn the_page_has_no_inline_code_and_loads_nothing_from_elsewhere() {
        for asset in ASSETS.iter().filter(|asset| !asset.path.starts_with("/uplot")) {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
            {
                assert!(!asset.text.contains(word), "{} has {word}", asset.path);
            }
        }
        let page = ASSETS[0].text;
        assert!(!page.contains("style="), "inline style");
        for (_, tag) in page.match_indices("<script").map(|(at, _)| page[at..].split_at(7)) {
            assert!(tag.starts_with(" src=\"/") && tag.contains("></script>"), "inline code");
        }
    }
}
