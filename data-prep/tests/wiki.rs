//! Dumps in many languages: no markup reaches the corpus.

use std::path::Path;

use crate::common::{corpora, source};
use lambert_config::prep::Documents;
use lambert_data_prep::extract::Extracted;
use lambert_data_prep::source as input;

/// Language code, local name of the file namespace, alias of the file namespace, category namespace, `thumb` keyword,
/// redirect keyword, disambiguation template, a sentence.
type Wiki = [&'static str; 8];

const WIKIS: [Wiki; 24] = [
    ["am", "ስዕል", "Image", "መደብ", "thumb", "#REDIRECT", "መንታ", "ከተማው ትልቅ ነው።"],
    ["ar", "ملف", "صورة", "تصنيف", "تصغير", "#تحويل", "توضيح", "المدينة كبيرة."],
    ["bn", "চিত্র", "Image", "বিষয়শ্রেণী", "থাম্ব", "#পুনর্নির্দেশ", "দ্ব্যর্থতা নিরসন", "শহরটি বড়।"],
    ["cs", "Soubor", "Image", "Kategorie", "náhled", "#PŘESMĚRUJ", "Rozcestník", "Město je velké."],
    ["de", "Datei", "Bild", "Kategorie", "mini", "#WEITERLEITUNG", "Begriffsklärung", "Die Stadt ist groß."],
    ["en", "File", "Image", "Category", "thumb", "#REDIRECT", "Disambiguation", "The town is large."],
    [
        "es",
        "Archivo",
        "Imagen",
        "Categoría",
        "miniaturadeimagen",
        "#REDIRECCIÓN",
        "Desambiguación",
        "La ciudad es grande.",
    ],
    ["fa", "پرونده", "تصویر", "رده", "بندانگشتی", "#تغییر_مسیر", "ابهام‌زدایی", "شهر بزرگ است."],
    ["fr", "Fichier", "Image", "Catégorie", "vignette", "#REDIRECTION", "Homonymie", "La ville est grande."],
    ["he", "קובץ", "תמונה", "קטגוריה", "ממוזער", "#הפניה", "פירושונים", "העיר גדולה."],
    ["hi", "चित्र", "Image", "श्रेणी", "अंगूठाकार", "#अनुप्रेषित", "बहुविकल्पी शब्द", "शहर बड़ा है।"],
    ["hu", "Fájl", "Kép", "Kategória", "bélyegkép", "#ÁTIRÁNYÍTÁS", "Egyért", "A város nagy."],
    ["hy", "Պատկեր", "Image", "Կատեգորիա", "մինի", "#ՎԵՐԱՀՂՈՒՄ", "Բազմիմաստություն", "Քաղաքը մեծ է։"],
    ["ja", "ファイル", "画像", "カテゴリ", "サムネイル", "#転送", "Aimai", "町は大きい。"],
    ["ka", "ფაილი", "სურათი", "კატეგორია", "მინი", "#გადამისამართება", "მრავალმნიშვნელოვანი", "ქალაქი დიდია."],
    ["ko", "파일", "그림", "분류", "섬네일", "#넘겨주기", "동음이의", "도시는 크다."],
    ["ro", "Fișier", "Imagine", "Categorie", "miniatură", "#REDIRECTEAZA", "Dezambiguizare", "Orașul este mare."],
    ["ru", "Файл", "Изображение", "Категория", "мини", "#перенаправление", "Неоднозначность", "Город большой."],
    ["sv", "Fil", "Bild", "Kategori", "miniatyr", "#OMDIRIGERING", "Förgrening", "Staden är stor."],
    ["th", "ไฟล์", "ภาพ", "หมวดหมู่", "thumb", "#เปลี่ยนทาง", "แก้กำกวม", "เมืองใหญ่มาก"],
    ["tr", "Dosya", "Resim", "Kategori", "küçükresim", "#YÖNLENDİRME", "Anlam ayrımı", "Şehir büyüktür."],
    ["ur", "ملف", "تصویر", "زمرہ", "تصغیر", "#رجوع_مکرر", "ضد ابہام", "شہر بڑا ہے۔"],
    ["zh", "文件", "图像", "分类", "缩略图", "#重定向", "消歧义", "城市很大。"],
    // A language that is not in the table of the extractor.
    ["xx", "Dingsda", "File", "Haufen", "klein", "#WOANDERS", "Disambig", "Da urb es grand."],
];

/// Pages in the style of the help pages of MediaWiki on images, categories, redirects and tables.
fn dump([code, file, alias, category, thumb, redirect, disambiguation, sentence]: &Wiki, own_head: bool) -> String {
    let names = if own_head {
        format!(
            "<namespace key=\"6\" case=\"first-letter\">{file}</namespace><namespace key=\"14\">{category}</namespace>"
        )
    } else {
        "<namespace key=\"6\" case=\"first-letter\">File</namespace>".to_owned()
    };
    let (language, name) = if own_head { (*code, format!("{code}wiki")) } else { ("en", "enwiki".to_owned()) };
    let page = |title: &str, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("<page><title>{title}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n")
    };
    let article = format!(
        "[[{file}:Berlin Mitte 2.jpg|{thumb}|left|upright=1.2|160px|{sentence} [[A|B]] <small>C</small>]]\n\
         {sentence}[[{alias}:Map of it.svg|20x30px|alt=A map|link=]]\n\
         <gallery mode=\"packed\">\n{file}:One.png|{sentence}\nTwo.png\n</gallery>\n\
         {{| class=\"wikitable\" style=\"width:50%\"\n! A !! [[{file}:Flag.gif|border|22px]]\n|-\n| {{{{X|a=b}}}} || c\n|}}\n\
         {sentence} [[{file}:Sound.ogg|{thumb}]] {sentence}\n\
         {{{{Infobox|image=[[{file}:A.jpg|250px]]|b={{{{c|[[D]]}}}}}}}}\n\
         * [[{file}:Icon.png|16px]] item\n\
         [[{category}:Towns|*]]\n[[{category}:Rivers]] [[Category:Others]]\n[[hu:Valami]]\n"
    );
    format!(
        "<mediawiki xml:lang=\"{language}\">\n<siteinfo><dbname>{name}</dbname><namespaces><namespace key=\"0\" />{names}\
         </namespaces></siteinfo>\n{}{}{}</mediawiki>\n",
        page("One", &article),
        page("Two", &format!("{redirect} [[One]]")),
        page("Three", &format!("{sentence}\n* [[One]]\n{{{{{disambiguation}}}}}\n")),
    )
}

/// Returns the prose of the articles, and the reasons why the other pages were rejected.
fn read(path: &Path) -> (Vec<String>, Vec<&'static str>) {
    let source = source(path, "wikipedia", Documents::Row);
    let (mut articles, mut rejected) = (Vec::new(), Vec::new());
    for file in input::find_files(std::slice::from_ref(&source), 2).unwrap() {
        let mut pages = input::open_reader(&source, &file, Default::default()).unwrap();
        while let Some(page) = pages.next().unwrap() {
            match input::extract(&source, &file, &page, &mut |_| {}).unwrap() {
                Extracted::Text(text) | Extracted::Sentences(text) => articles.push(text),
                Extracted::Rejected(why) => rejected.push(why),
            }
        }
    }
    (articles, rejected)
}

#[test]
fn no_markup_is_left_in_any_language() {
    let folder = tempfile::tempdir().unwrap();
    for wiki in &WIKIS {
        let (code, sentence) = (wiki[0], wiki[7]);
        let path = folder.path().join(format!("{code}wiki-pages-articles.xml"));
        std::fs::write(&path, dump(wiki, true)).unwrap();
        let (articles, rejected) = read(&path);
        assert_eq!(articles, [format!("{sentence}\n{sentence} {sentence}\n")], "{code}");
        assert_eq!(rejected, ["wikipedia: redirect", "wikipedia: disambiguation"], "{code}");
    }
}

/// An excerpt in another language often has the siteinfo of the English Wikipedia.
#[test]
fn a_dump_with_the_siteinfo_of_another_wiki_leaves_no_markup() {
    let folder = tempfile::tempdir().unwrap();
    for wiki in WIKIS.iter().filter(|wiki| wiki[0] != "xx") {
        let path = folder.path().join(format!("{}wiki-mini.xml", wiki[0]));
        std::fs::write(&path, dump(wiki, false)).unwrap();
        let (articles, rejected) = read(&path);
        assert_eq!(articles.concat(), format!("{0}\n{0} {0}\n", wiki[7]), "{}", wiki[0]);
        assert_eq!(rejected.len(), 2, "{}: {rejected:?}", wiki[0]);
    }
}

/// Returns the lines with remaining markup.
fn leaks(text: &str) -> Vec<&str> {
    const MARKS: [&str; 10] = ["[[", "]]", "{{", "}}", "{|", "|", "<ref", "</", "px|", "__"];
    // A reader of the page sees these marks too. They are in articles about characters and HTML, or are typos of the
    // source.
    const SHOWN: [&str; 5] = [
        "trigraphs were created",
        "<strong>R</strong> sorkons",
        "volūda|praņciskai",
        "detection of gravitational waves|url",
        "(Pashto |",
    ];
    let is_shown = |line: &&str| SHOWN.iter().any(|part| line.contains(part));
    text.lines().filter(|line| !is_shown(line)).filter(|line| MARKS.iter().any(|mark| line.contains(mark))).collect()
}

#[test]
fn the_development_dumps_leave_no_markup() {
    let Some(corpora) = corpora() else { return };
    let mut words = 0;
    for folder in ["wiki", "wiki/minidumps"] {
        for entry in std::fs::read_dir(corpora.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path.to_string_lossy().ends_with(".xml.bz2") {
                continue;
            }
            for article in read(&path).0 {
                words += article.split_whitespace().count();
                assert_eq!(leaks(&article), [""; 0], "{}", path.display());
            }
        }
    }
    assert!(words > 200_000, "{words} words");
}
