"""Word stems that say what kind of work an ask wants, in the languages users write most.

A stem matches every word that begins with it, after case folding and removal of accents: `beweis` matches `Beweise`,
and `demontr` matches `démontrez`. A stem that ends in `.`, or has fewer than four letters, matches that whole word
only; one that holds `|` is a pair of neighbouring words. Chinese and Japanese stems match anywhere, because these
scripts do not separate words.
"""

STEMS: dict[str, str] = {
    "proof": """
        докаж выведит prove. provi deduza deriva 증명 유도 導け 証明 導出 lipschitz justifie|ta construct construis
        konstruiere construye 构造 敛散 begrund proves. proving. proof proofs theorem lemma corollar derive.
        derives. deriving. derivation conjectur axiom induct contradict irrational counterexample rigorous rigour
        formally qed isomorph homomorph bijection show|that disprove verify|that beweis herleit leite. widerleg
        satz. zeige|dass induktion demuestr demostra demostr deduc deduzc teorema refut demontr prouv preuve
        theoreme montre|que montrez|que dedui recurrence dimostr dokaz доказ теорем prova. provar 证明 证 推导 定理
        引理 归纳法 反证 反例
    """,
    "mathematics": """
        folge. teilfolge beschrankt bounded subsequence subsucesion sucesion suite|bornee sous|suite acotad 数列
        子列 有界 иррациональн компакт irrazional irracional радикал граф 무리수 방정식 콤팩트 無理数 全域木 homolog
        cohomolog sheaf hausdorff borel lebesgue noether galois cauchy sylow klein|bottle knot. spectral operator
        subspace separable dense. open|set compacts compakt kompakt stetig differenzierbar nullstelle ungleichung
        inequalit inecuacion inequation autovalor valeurs|propres eigenwert bruch. reihe. series|de convergen
        diagonalis jordan unbias estimador estimateur schatzer derivable chord dice. hamiltonian 乘积 不等式 特征
        对角化 可导 连续 无理 紧致 空间 行列式 估计 对偶 弦 integral integrat eigen matri polynom prime. primes.
        modul topolog manifold converg diverg probabilit expect random|variable variance distribution stochast
        equation differential derivativ gradient hessian laplac fourier taylor series. sequence sum. sums. cosine
        sine. logarithm triangle. triangles. angle circle. radius geometr algebra vector. vectors. tensor subgroup
        abelian cyclic. field. ring. ideal. coprime divisib factorial permutation combin binomial integer. integers.
        rational limit. limits. bayes markov martingal continuous compact. metric. norm. hilbert banach bound.
        bounds. asymptot estimator likelihood gleichung wahrscheinlich matrix primzahl ableitung grenzwert dreieck
        verteilung erwartungswert ecuacion probabilidad derivada matriz primo limite triangulo esperanza probabilite
        derivee matrice premier. premiers. esperance suite. espace. 积分 概率 矩阵 方程 微分 导数 极限 素数 质数
        向量 分布 期望 方差 多项式 三角形 整数 级数 收敛 特征值 余数 函数 数学 確率 方程式 積分 вероятн интеграл
        уравнен
    """,
    "algorithm": """
        verkettete|liste liste|chainee lista|enlazada kantengewicht aristas aretes korrektheit correction.
        correccion pont. puentes brucken bridge. 链表 边权 入口 正确性 рекурсив остовн albero alberi ricorsiv
        recursiv arvores 알고리즘 구현 構文解析 実装 teilstring sous|chaine subcadena monotonic|stack bloom
        hash|join np|complete parser. analizador analyseur grammaire gramatica reduccion reduction reduktion
        公共子串 子串 有向图 归约 红黑树 语法 解析器 图中 algorithm complexity. dynamic|programming recurs heap.
        heaps. hash. hashing. hashmap bst. trie. dijkstra backtrack amortiz amortis np. big|o logn invariant
        pseudocode data|structure subarray subsequence substring linked|list binary|search binary|tree shortest|path
        spanning topological|sort time|complexity greedy knapsack traversal sorted. graph. graphs. automat turing
        compiler parsing. lexer grammar. algorithmus laufzeit datenstruktur algoritmo complejidad estructura|de
        algorithme complexite 算法 复杂度 数据结构 动态规划 递归 排序 图论 最短路径 二叉树 哈希 子序列 子数组
        アルゴリズム 계산 алгоритм
    """,
    "systems": """
        veraltete stale replica replikat replique datos|viejos donnees|perimees 副本 旧数据 全表 распределён
        progetta progettare projete stallo impasse блокиров поток デッドロック スレッド 교착 스레드 quorum 설계
        kafka split|brain failover isolation isolationsstufe niveau|isolation aislamiento write|skew retry. retries.
        timeout. timeouts. wettlaufsituation condicion|de course|critique carrera reserv buchungssystem surreserv
        sobreventa datenmodell modele|de modelo|de 隔离级别 竞态条件 内存屏障 数据模型 预订系统 数据库 architect
        distributed concurren deadlock race|condition thread mutex lock. locks. locking. lockfree consensus raft.
        paxos shard partition transaction microservice scalab scale. latency throughput idempot event|driven queue.
        queues. cache. caching. eventual consisten rate|limit load|balanc kubernetes backpressure memory|leak
        segfault scheduler. kernel. protocol. multi|tenant exactly|once crdt saga. nebenlaufig verteilt skalier
        hochverfugbar gleichzeitig sperr. wettlauf architektur entwirf entwerfe verklemmung distribuid escalab
        arquitectura disena bloqueo interbloqueo hilos reparti concurrent verrou interblocage concevez concois
        concevoir 分布式 并发 死锁 竞态 线程 架构 高可用 一致性 微服务 吞吐 延迟 事务 限流 分片 扩展 设计一个
        系统设计 锁 消息队列 распредел параллел
    """,
    "code": """
        code. coding. function. functions. python javascript typescript java. rust. golang c. sql. regex regexp bug.
        bugs. debug class. query. queries. api. json. script. program. implement return. returns. list|of string.
        array. tuple import. async await. pointer. loop. unit|test refactor compile exception traceback stack|trace
        join. index. postgres mysql pandas numpy react docker bash git. programm implementier schreibe|eine funktion
        funcion implementa programa. codigo consulta ecris|une fonction requete codez 代码 函数 编程 程序 实现 正则
        查询 接口 调试 关数 コード функц
    """,
    "optimisation": """
        целочислен intero. inteira 정수 최적 整数計画 dual. duality dualitat dualidad dualite aufteil verteile
        reparte repartis maximiere minimiere tarif 对偶 使转化 收益 optimi minimi maximi constraint subject|to
        feasib linear|program integer|program tradeoff trade|off pareto allocat schedul timetab assignment. budget.
        capacity. capacities. bottleneck routing. knapsack utilit nebenbeding engpass zuteil einsatzplan dienstplan
        restriccion presupuesto asigna horario contraint planif affect ordonnanc 优化 最优 约束 最小化 最大化 调度
        分配 排班 预算 оптимиз
    """,
    "legal": """
        kaufer verkaufer mieter vermieter eigentumer erbe. erben rechte. fristen frist. mangel. mangeln gewahrleist
        schuldner glaubiger forderung mitverschulden rucktritt zurucktret widerruf urteil ruling rescind heir. heirs
        plaintiff debtor creditor limitation|period buyer. seller. acheteur heritier debiteur creance prescri
        locataire proprietaire faute. heredero deudor acreedor comprador vendedor prescrib 房东 租客 买方 卖方 买家
        债务 遗嘱 解除 法院 过失 违法 欠款 起诉 侵权 disaffirm admissib warrant. sue. sued evict liable warranty
        insolven haftung fristlos strafbar pflichtteil verjahr erbfall schenk licencier faute|grave vendeur recours
        heredit usufruit legitima donacion delito administrador plazo despedir acciones klage beklagt abogad avocat
        anwalt testament 继承 赠与 时效 解雇 定性 董事 请求权 抗辩 权利 law. legal liabil contract. contracts.
        statut clause court. jurisdict defendant tort. tortious gdpr negligen breach indemn patent. copyright licens
        constitution precedent injunction fiduciary tenant. landlord arbitrat enforceab damages. lawsuit rechtlich
        haftet vertrag klausel kundig gericht dsgvo mietrecht schadenersatz anspruch arbeitsrecht juridi responsab
        contrato clausula despid demandad tribunal indemniz inquilin responsabilit contrat. contrats. licenci
        juridique bail. prejudice rgpd 法律 合同 违约 责任 诉讼 条款 赔偿 劳动法 刑法 民法 юридич договор
    """,
    "clinical": """
        blutverdunn vorhofflimmern blutung saugling stoffwechsel herzfehler ursachen anticoagul fibrillat cardiopat
        nourrisson lactante cirrhos cirrosis cirrhose zirrhose hemorrag hemorragi confus. verwirrt natriumwert
        operation. operacion 病因 婴儿 抗凝 房颤 出血 呼吸 肝硬化 首要检查 意识 感染 代谢 варфарин paziente
        warfarina varfarina infermier 患者 환자 와파린 ワルファリン heparin metformin syphilis newborn. lithium
        clozapin clonus ssri ketone cetone glukose glycemie glucosa interaktion tremor temblor trembl erbricht vomit
        vomis fiebre. farmaco medicament medikament arzneimittel gfr. gout. 血气 酮体 血糖 呕吐 震颤 锂盐 服药
        氯氮平 病人 patient diagnos symptom differential|diagnosis dose. dosing dosage renal hepatic cardiac chest.
        acute. chronic. therapy therapeut treatment. clinical prognos contraindic pharmac antibiot anticoag warfarin
        insulin hyponatr hyperkal sepsis lesion. biopsy presents|with comorbid creatinine ecg. ekg. mri. patholog
        etiolog fever. bleeding. pregnan surg. surgical. klinisch nieren schwanger fieber dosierung behandl
        vorerkrank patientin befund paciente sintoma tratamiento diagnostic fiebre embaraz dosis clinic patiente
        symptome traitement fievre enceinte posologie 诊断 症状 治疗 临床 药物 剂量 肾 妊娠 发热 鉴别 手术 病史
        пациент диагноз
    """,
    "science": """
        oligopol steuer tax. impuesto taxe. 寡头 征税 neutrin noether aharonov tariff monopson welfare oxalat
        permanganat inertgas gas|inerte gaz|inerte redox schiefe|ebene plano|inclinado plan|incline beschleunigung
        acceleration aceleracion controller pendulum endogen difference|in differenz|von oferta zentralbank
        banque|centrale banco|central 央行 供给 加速度 惰性 配平 反应 定价 期权 对冲 最低工资 双重差分 quantum
        relativ thermodynam entropy enthalp equilibri molecul atom reaction mechanism. mechanisms. kinetic orbital
        electron spin. photon wave. magnet semiconductor entangle protein enzyme gene. genes. genom mutation
        transcription receptor metabol evolution neural transformer. gradient reinforcement bayesian causal
        instrumental|variable econometr regress heteroskedast macroeconom monetary inflation. elastic epistem
        ontolog kant. hermeneut phenomenol cosmolog cryptograph encrypt zero|knowledge topolog catalys synthes
        spectroscop stoichiom renormal gauge. hamiltonian lagrangian schrodinger navier turbulen plasma quanten
        entropie gleichgewicht relativitat kausal erkenntnis cuantic entropia termodinamic mecanismo quantique
        thermodynamique mecanisme 量子 热力学 熵 相对论 蛋白质 基因 机制 因果 回归 神经网络 密码学 光合 分子 平衡
        量子力学 квант
    """,
    "analysis": """
        сравните объясните оцените analizza confronta spiega|perche explique|por analise 분석 分析せよ contrast.
        historiograph untersuch entwickle|ein pondera elabora pese. trenne separa. separe. determinism responsab
        widerleg refute. refut objection objecion einwand 讨论 区分 反驳 权衡 定位原因 论证 analy evaluat critiqu
        critically justif assess implication argu rigor compare. synthesi reconcil explain|why explain|how step|by
        in|depth root|cause diagnose investigat determine. strategy strategies evidence assumption consequence
        limitation philosoph ethic dilemma paradox thesis hypothes methodolog identification validity confound bias.
        interpret analysier bewert begrunde beurteil erlautere erortere untersuche vergleiche abwag schritt|fur
        analiza evalua justifica argument compara critica explica|por paso|a examina analys evalu compar justifi
        discut expliqu critique etape|par 分析 评估 比较 解释为什么 详细 推理 判断 一步一步 逐步 策略 影响 为何 论述
        анализ сравни обоснуй
    """,
    "condition": """
        if. given. suppose. assume. assuming. let. such|that unless. whenever. every. each. exactly. at|least
        at|most without. must. cannot. only. satisf respectiv provided. under. where. while. neither. both. wenn.
        falls. sei. gegeben. jede mindestens hochstens genau. ohne. muss. mussen. darf. sodass. si. dado. dada.
        suponga sea. cada. al|menos como|maximo exactamente sin. debe. deben. tal|que soit. soient. etant donnee.
        chaque. au|moins au|plus exactement sans. doit. doivent. tel|que 如果 假设 设 已知 给定 每个 每 至少 至多
        恰好 必须 不能 满足 使得 若 其中 если каждый
    """,
    "arithmetic": """
        how|many how|much total. per. twice. half. thrice. remaining. left. altogether. percent percentage dollars.
        cents. cost. costs. price. spend. spent. earn. earns. sold. sells. buys. bought. speed. hour. hours.
        minutes. km. miles. average. ratio. fraction. times. older. younger. age. interest. profit. rate. more|than
        wie|viele wie|viel insgesamt prozent doppelt halfte stunden kilometer preis kostet durchschnitt cuantos
        cuantas cuanto doble mitad horas kilometros precio cuesta promedio porcentaje combien moitie heures
        kilometres prix coute pourcent moyenne 多少 几个 一共 总共 平均 百分 小时 公里 价格 利润 速度 分钟 元
        сколько
    """,
    "greeting": """
        hello. hi. hey. thanks. thank. good|morning good|night good|evening how|are bye. goodbye. welcome. cheers.
        please. nice|to hallo. danke. guten. tschuss bitte. servus. moin. gruss hola. gracias. buenos. buenas.
        adios. favor. que|tal saludos bonjour. salut. merci. bonsoir. revoir. plait. coucou. 你好 您好 谢谢 早上好
        晚安 再见 请问 早安 こんにちは ありがとう 안녕 привет спасибо ciao. grazie. ola. obrigad
    """,
    "language": """
        translate. translation. translat spell. spelled. spelling. synonym. synonyms. antonym opposite. plural.
        meaning. mean. means. define. definition. pronounce. word. words. rhyme. rhymes. past|tense sentence.
        sentences. abbreviat stand|for stands|for acronym capitalize alphabet letter. letters. noun. verb.
        adjective. grammar. ubersetz buchstab synonym gegenteil mehrzahl bedeutet. bedeutung. wort. heisst. traduc
        traduz sinonimo antonimo significa deletrea escribe|la palabra. opuesto contrario. tradui synonyme antonyme
        pluriel signifie. veut|dire epelle epeler mot. orthograph 翻译 意思 拼写 同义词 反义词 怎么说 怎么写 怎么读
        造句 什么意思 英文 用英语 переведи слово 翻訳 意味
    """,
    "rewrite": """
        rewrite. rephrase. reword. shorten. shorter. polite. politely. politer. friendlier friendly. formal.
        informal. proofread. typo. typos. summarize. summarise. summary. caption. headline. title. slogan.
        subject|line email. message. invitation. thank|you card. note. tweet. reminder. rsvp. umformulier hoflich
        kurze. kurzer. korrigier fasse. betreff nachricht. einladung. gluckwunsch karte. reescrib reformul acorta
        corrige. resume. resumen. correo. mensaje. invitacion. felicitacion titulo. cortes. reecri raccourci
        poliment. resumez. courriel. carte. titre. 改写 润色 缩短 礼貌 总结 标题 邮件 短信 祝福 纠正 修改 通知 贺卡
        邀请
    """,
    "recall": """
        capital. who. whose. when. where. what|year what|color what|colour what|is which|country which|planet
        located. invented. wrote. painted. born. president. population. largest. tallest. biggest. longest.
        continent. flag. currency. author. name|three name|two name|a list. lists. examples. name. hauptstadt. wer.
        wann. wo. welche. welches. welcher. erfand. schrieb. liegt. farbe. nenne. zahle. grosste. wahrung. quien.
        cuando. donde. cual. pais. invento. escribio. nombra. enumera. lista. color. moneda. qui. quand. ou. quelle.
        quel. capitale. pays. inventa ecrit. cite. citez. liste. couleur. monnaie. donne|moi 首都 谁 哪个 哪里
        哪一年 什么时候 颜色 列出 列举 举出 说出 国家 最大 最高 是什么 几月 столица кто где когда
    """,
    "convert": """
        convert. celsius. fahrenheit. inches. feet. ounces. pounds. kilograms. grams. cups. teaspoon tablespoon.
        liters. litres. gallons. centimeters. meters. metres. seconds. days|in weeks|in time|zone rechne umrechn
        zoll. gramm. liter. meter. pfund. sekunden. convierte. convertir. pulgadas. gramos. litros. metros. libras.
        segundos. convertis pouces. grammes. livres. secondes. 换算 等于多少 摄氏 华氏 厘米 英寸 公斤 毫升 磅
    """,
    "everyday": """
        recipe. cook. cooking. bake. boil. egg. eggs. rice. pasta. soup. tea. coffee. bread. cake. pizza. salad.
        dinner. lunch. breakfast. snack. dog. dogs. cat. cats. puppy. pet. bird. fish. birthday. party. movie.
        movies. film. song. songs. music. book. weather. rain. sunny. joke. poem. holiday. weekend. vacation. beach.
        picnic. kid. kids. child. children. mom. mum. dad. friend. friends. neighbor. neighbour. shirt. shoes.
        laundry. garden. flower. flowers. plant. plants. sleep. walk. bike. car. bus. hotel. gift. present.
        favourite. favorite. fun. funny. cute. happy. hobby. hobbies. game. games. rezept. kochen. kaffee. tee.
        brot. kuchen. hund. katze. geburtstag. wetter. witz. gedicht. urlaub. wochenende. kinder. freund. freundin.
        blumen. garten. lied. buch. essen. receta. cocinar. cafe. perro. gato. cumpleanos. clima. chiste. poema.
        vacaciones. ninos. amigo. amiga. flores. cancion. libro. comida. desayuno. cena. recette. cuisiner. chien.
        chat. anniversaire. meteo. blague. poeme. vacances. enfants. ami. amie. fleurs. chanson. livre. diner.
        dejeuner. 鸡蛋 米饭 咖啡 茶 面包 蛋糕 狗 猫 生日 天气 笑话 诗 假期 周末 孩子 朋友 花 歌 电影 早餐 晚餐 菜
        水果 宠物 рецепт погод
    """,
    "simple": """
        simple. simply. quick. quickly. short. brief. briefly. basic. one|sentence one|word easy. just. small.
        little. tiny. common. popular. famous. typical. usual. well|known few. some. einfach einfache. kurz.
        schnell. bekannte beliebte typische ein|satz sencill breve. corto. corta. rapido. facil. conocid famos
        popular tipic bref. court. courte. facile. rapide. connu celebre. populaire. 简单 简短 常见 一句话 著名 快速
        基本 几种 三种 三个 五个 простой кратко
    """,
}
