//! Names of namespaces (files, media, categories) and of disambiguation templates in the languages of Wikipedia. All
//! names are in lowercase and include aliases.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Language code, namespaces, disambiguation templates.
type LanguageNames = (&'static str, &'static str, &'static str);

/// True if `prefix` is the name of a hidden namespace in any language. Every language is checked because translated
/// articles keep links of the original, and because the English names work in every wiki.
pub fn is_hidden_namespace(prefix: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> =
        LazyLock::new(|| LANGUAGES.iter().flat_map(|(_, names, _)| names.split(',')).collect());
    NAMES.contains(prefix)
}

/// Disambiguation templates of the language `code`, or `None` if the language is not listed.
pub fn disambiguation_templates(code: &str) -> Option<impl Iterator<Item = &'static str>> {
    LANGUAGES.iter().find(|(known, ..)| *known == code).map(|(.., templates)| templates.split(','))
}

/// Disambiguation templates of all languages.
pub fn all_disambiguation_templates() -> impl Iterator<Item = &'static str> {
    LANGUAGES.iter().flat_map(|(.., templates)| templates.split(','))
}

const LANGUAGES: [LanguageNames; 122] = [
    ("af", "lêer,beeld,kategorie", "dubbelsinnig"),
    ("als", "datei,bild,medium,kategorie", "begriffsklärung,begriffsklärig"),
    ("am", "ስዕል,ፋይል,መደብ", "መንታ"),
    ("an", "imachen,imagen,categoría", "desambigación,desambig"),
    ("ar", "ملف,صورة,وسائط,ميديا,تصنيف", "توضيح,صفحة توضيح"),
    ("arz", "ملف,صورة,ميديا,وسائط,تصنيف", "توضيح"),
    ("as", "চিত্ৰ,চিত্র,মাধ্যম,শ্ৰেণী,শ্রেণী", "দ্ব্যৰ্থতা দূৰীকৰণ"),
    ("ast", "imaxe,imaxen,ficheru,archivu,medios,categoría", "dixebra"),
    ("az", "şəkil,fayl,mediya,kateqoriya", "dəqiqləşdirmə"),
    ("azb", "فایل,بؤلمه", "آیدینلاشدیرما"),
    ("ba", "файл,рәсем,медиа,категория,төркөм", "күп мәғәнәлелек"),
    ("bar", "datei,bild,medium,kategorie", "begriffsklärung"),
    ("be", "файл,выява,мэдыя,медыя,катэгорыя,мультымедыя", "неадназначнасць,неадназначнасьць"),
    ("bg", "файл,картинка,медия,категория", "пояснение"),
    ("bn", "চিত্র,ফাইল,মিডিয়া,বিষয়শ্রেণী", "দ্ব্যর্থতা নিরসন"),
    ("br", "restr,skeudenn,rummad", "disheñvelout"),
    ("bs", "datoteka,slika,mediji,medija,kategorija", "čvor"),
    ("ca", "fitxer,imatge,categoria", "desambiguació"),
    ("ce", "файл,медиа,категори,сурт,хlум,медйа,кадегар,тоба", "дуккхамаьӏналла"),
    ("ceb", "payl,imahen,medya,kategoriya", "giklaro"),
    ("ckb", "پەڕگە,میدیا,پۆل", "ڕوونکردنەوە"),
    ("cs", "soubor,média,kategorie", "rozcestník"),
    ("cv", "ӳкерчĕк,медиа,категори", "пĕр пеклисем"),
    ("cy", "delwedd,ffeil,categori", "gwahaniaethu"),
    ("da", "fil,billede,kategori", "flertydig"),
    ("de", "datei,bild,medium,kategorie", "begriffsklärung"),
    ("el", "αρχείο,εικόνα,μέσο,κατηγορία,μέσον", "αποσαφήνιση"),
    (
        "en",
        "file,image,media,category",
        "disambig,disambiguation,hndis,geodis,dab,disamb,human name disambiguation,place name disambiguation",
    ),
    ("eo", "dosiero,aŭdvidaĵo,aŭdvida,kategorio", "apartigilo"),
    ("es", "archivo,imagen,medio,categoría", "desambiguación"),
    ("et", "pilt,fail,meedia,kategooria", "täpsustuslehekülg,täpsustus"),
    ("eu", "fitxategi,irudi,kategoria", "argipen"),
    ("fa", "پرونده,تصویر,رسانه,مدیا,رده,رسانه‌ای", "ابهام‌زدایی"),
    ("fi", "tiedosto,kuva,luokka", "täsmennyssivu,täsmennys"),
    ("fo", "mynd,miðil,bólkur", "fleiri týdningar"),
    ("fr", "fichier,image,média,catégorie", "homonymie,paronymie,toponymie"),
    ("fy", "triem,ofbyld,ôfbyld,kategory", "betsjuttingsside"),
    ("ga", "íomhá,comhad,meán,catagóir,rang", "idirdhealú"),
    ("gd", "faidhle,meadhan,roinn-seòrsa", "soilleireachadh"),
    ("gl", "ficheiro,imaxe,arquivo,categoría", "homónimos"),
    ("gu", "ચિત્ર,દ્રશ્ય-શ્રાવ્ય (મિડિયા),દ્રશ્ય-શ્રાવ્ય,શ્રેણી", "અનેકાર્થી"),
    ("he", "קובץ,תמונה,מדיה,קטגוריה", "פירושונים"),
    ("hi", "चित्र,फ़ाइल,मीडिया,श्रेणी", "बहुविकल्पी शब्द,बहुविकल्पी"),
    ("hr", "datoteka,slika,mediji,kategorija", "razdvojba"),
    ("hu", "fájl,kép,média,kategória", "egyért,egyértelműsítő lap"),
    ("hy", "պատկեր,նկար,մեդիա,կատեգորիա", "բազմիմաստություն,երկիմաստ"),
    ("ia", "file,imagine,categoria,multimedia", "disambiguation"),
    ("id", "berkas,gambar,kategori", "disambiguasi,ketaksaan"),
    ("io", "arkivo,imajo,kategorio", "homonimo"),
    ("is", "mynd,skrá,miðill,flokkur", "aðgreining"),
    ("it", "file,immagine,categoria", "disambigua"),
    ("ja", "ファイル,画像,メディア,カテゴリ", "aimai,曖昧さ回避"),
    ("jv", "gambar,berkas,barkas,médhia,kategori,medhia", "disambig"),
    ("ka", "ფაილი,სურათი,მედია,კატეგორია", "მრავალმნიშვნელოვანი"),
    ("kk", "сурет,файл,таспа,медиа,санат,swret,taspa,sanat", "айрық"),
    ("km", "ឯកសារ,រូបភាព,មេឌា,ចំណាត់ថ្នាក់ក្រុម,ចំណាត់ក្រុម,មីឌា,ចំនាត់ថ្នាក់ក្រុម", "ចំណងជើងស្រដៀងគ្នា"),
    ("kn", "ಚಿತ್ರ,ಮೀಡಿಯ,ವರ್ಗ", "ದ್ವಂದ್ವ ನಿವಾರಣೆ"),
    ("ko", "파일,그림,미디어,분류", "동음이의,동음이의어 문서"),
    ("ku", "wêne,medya,kategorî", "cudakirin"),
    ("ky", "файл,сүрөт,медиа,категория", "дагы караңыз"),
    ("la", "fasciculus,imago,categoria", "discretiva"),
    ("lb", "fichier,bild,kategorie", "homonymie"),
    ("li", "afbeelding,bestand,media,categorie", "verdudeliking"),
    ("lo", "ຮູບ,ສື່,ໝວດ,ສື່ອ", "ແກ້ກຳກວມ"),
    ("lt", "vaizdas,medija,kategorija", "disambig,nuorodinis straipsnis"),
    ("ltg", "fails,kategoreja,medeja", "nūzeimu atdaleišona"),
    ("lv", "attēls,fails,kategorija", "nozīmju atdalīšana"),
    ("mg", "sary,rakitra,sokajy", "homonymie"),
    ("mk", "податотека,слика,медиум,медија,категорија", "појаснување"),
    ("ml", "പ്രമാണം,ചിത്രം,മീഡിയ,വർഗ്ഗം,വിഭാഗം", "വിവക്ഷകൾ"),
    ("mn", "файл,зураг,медиа,ангилал", "салаа утгатай"),
    ("mr", "चित्र,मीडिया,वर्ग,मिडिया", "निःसंदिग्धीकरण"),
    ("ms", "fail,imej,kategori", "nyahkekaburan"),
    ("my", "ဖိုင်,မီဒီယာ,ကဏ္ဍ", "သံတူကြောင်းကွဲ"),
    ("nap", "fiùra,immagine,categurìa", "disambigua"),
    ("nds", "datei,bild,kategorie", "mehrdüdig begreep"),
    ("ne", "चित्र,मीडिया,श्रेणी", "बहुविकल्पी"),
    ("nl", "bestand,afbeelding,categorie", "dp,doorverwijspagina"),
    ("nn", "fil,bilde,filpeikar,kategori", "fleirtyding"),
    ("no", "fil,bilde,medium,kategori", "peker"),
    ("oc", "fichièr,imatge,mèdia,categoria", "omonimia"),
    ("or", "ଫାଇଲ,ପ୍ରତିକୃତି,ମାଧ୍ୟମ,ଶ୍ରେଣୀ,ବିଭାଗ", "ବହୁବିକଳ୍ପ"),
    ("os", "файл,ныв,нывæ,медиа,категори", "бирæнысанон"),
    ("pa", "ਤਸਵੀਰ,ਮੀਡੀਆ,ਸ਼੍ਰੇਣੀ", "ਗੁੰਝਲ-ਖੋਲ੍ਹ"),
    ("pl", "plik,grafika,kategoria", "ujednoznacznienie"),
    ("pms", "figura,immagine,categorìa", "gestion dij sinònim"),
    ("ps", "دوتنه,انځور,رسنۍ,وېشنيزه", "څرگندونه"),
    ("pt", "ficheiro,imagem,arquivo,multimédia,categoria", "desambiguação,desambig"),
    ("ro", "fișier,fişier,imagine,categorie", "dezambiguizare"),
    ("ru", "файл,изображение,медиа,категория", "неоднозначность,многозначность"),
    ("sa", "सञ्चिका,चित्रम्,माध्यमम्,वर्गः,चित्रं,माध्यम", "निर्दिष्टपुटम्"),
    ("sah", "билэ,ойуу,миэдьийэ,категория", "элбэх суолталаах өйдөбүл"),
    ("sc", "file,immàgini,categoria", "disambigua"),
    ("scn", "file,mmàggini,immagine,catigurìa", "disambigua"),
    ("sh", "datoteka,slika,medij,mediji,kategorija", "čvor"),
    ("si", "ගොනුව,රූපය,මාධ්‍යය,ප්‍රවර්ගය", "වක්‍රෝත්ති"),
    ("sk", "súbor,obrázok,médiá,kategória", "rozlišovacia stránka"),
    ("sl", "slika,datoteka,kategorija", "razločitev"),
    ("sq", "skeda,figura,kategoria", "kthjellim"),
    (
        "sr",
        "датотека,слика,медиј,медија,slika,datoteka,medij,категорија,kategorija,фотографија,fotografija",
        "вишезначна одредница",
    ),
    ("su", "gambar,média,kategori", "disambig"),
    ("sv", "fil,bild,kategori", "förgrening,gren,efternamnsförgrening"),
    ("sw", "picha,faili,jamii", "maana"),
    ("ta", "படிமம்,ஊடகம்,பகுப்பு", "பக்கவழி நெறிப்படுத்தல்"),
    ("te", "దస్త్రం,బొమ్మ,ఫైలు,మీడియా,వర్గం", "అయోమయ నివృత్తి"),
    ("tg", "акс,файл,медиа,гурӯҳ", "ибҳомзудоӣ"),
    ("th", "ไฟล์,ภาพ,สื่อ,หมวดหมู่", "แก้กำกวม"),
    ("tl", "talaksan,midya,kategorya,kaurian", "paglilinaw"),
    ("tr", "dosya,resim,ortam,kategori", "anlam ayrımı"),
    ("tt", "файл,рәсем,медиа,төркем,räsem,törkem", "күп мәгънәләр"),
    ("ug", "ھۆججەت,ۋاسىتە,تۈر", "ئېنىقسىز"),
    ("uk", "файл,зображення,медіа,категорія", "багатозначність,неоднозначність"),
    ("ur", "ملف,تصویر,فائل,زریعہ,وسیط,زمرہ,میڈیا", "ضد ابہام"),
    ("uz", "fayl,tasvir,media,turkum,kategoriya", "koʻp maʼnolilik"),
    ("vec", "file,imagine,categoria,categoría,imàjine", "disambigua"),
    ("vi", "tập tin,hình,phương tiện,thể loại", "trang định hướng,định hướng"),
    ("vo", "ragiv,magod,nünamakanäd,klad", "telplänov"),
    ("war", "paypay,fayl,medya,kaarangay", "pansayod"),
    ("xmf", "ფაილი,სურათი,მედია,კატეგორია", "შხვადოშხვაშინაარსიანი"),
    ("yi", "טעקע,בילד,מעדיע,קאטעגאריע,קאַטעגאָריע", "באדייטן"),
    ("yo", "fáìlì,àwòrán,amóhùnmáwòrán,ẹ̀ka", "ojútùú"),
    ("zh", "文件,档案,檔案,图像,圖像,图片,圖片,媒体,媒體,媒体文件,媒體檔案,分类,分類", "disambig,消歧义,消歧義"),
];

#[cfg(test)]
mod tests {
    use super::LANGUAGES;

    #[test]
    fn languages_are_sorted_and_lowercase() {
        assert!(LANGUAGES.is_sorted_by_key(|(code, ..)| code));
        for (code, names, templates) in LANGUAGES {
            let all: Vec<&str> = names.split(',').chain(templates.split(',')).collect();
            assert!(all.iter().all(|name| !name.is_empty() && name.to_lowercase() == *name), "{code}: {all:?}");
        }
    }
}
