"""Word stems of work where a wrong answer costs most: danger to life, faults in running systems, money, building.

Written as those in `lexicon.py`, which they are part of.
"""

STAKES: dict[str, str] = {
    "danger": """
        swallow ingest|ed ingested. ingestion. poison toxic overdos unconscious unrespons chok suffocat drown seizure
        convuls collaps suicid self|harm stab stabbed. electrocut anaphyl allergic|reaction snake|bite bitten. burns.
        scald fractur concuss head|injury stroke. heart|attack chest|pain short|of breathless cyanos coma. faint.
        fainted. fainting. carbon|monoxide bleach. antidote lethal fatal emergency emergencies danger dangerous hazard
        rescue. ambulance unsafe swollen numb. paralys premature infant. newborn toddler urgent urgency
        verschluckt verschlucken vergift giftig uberdos bewusstlos ohnmacht erstick ertrunken ertrink krampfanfall
        krampft kollabier selbstmord suizid anaphylak schlangenbiss gebissen verbrann verbruh knochenbruch schadel
        hirnersch schlaganfall herzinfarkt brustschmerz atemnot blaulich koma kohlenmonoxid gegengift todlich
        lebensgefahr notfall notarzt gefahr gefahrlich gefahren dringlich dringend knopfzelle saugling neugeboren
        kleinkind taubheit lahmung gelahmt geschwollen fruhgebor notaufnahme sturz. gesturzt
        trago. tragar tragado. ingirio. ingerid ingesta. envenen intoxic venenos sobredosis inconscien desmay asfixi
        atragant ahog convulsi colaps suicid anafil mordedur picadura quemadur fractura conmocion derrame. ictus.
        infarto dolor|toracico disnea falta|de cianosi monoxido lejia. antidoto mortal. letal emergencia peligro
        peligros urgencia urgente ambulancia recien|nacido lactante neonat hinchad adormec paralisis prematur
        avale. avaler. avalee. ingere. ingerer. ingestion. empoison intoxiqu veneneu surdos inconscien evanoui
        etouff noyade noye. convuls suicid anaphyla morsure. piqure. brulure fracture commotion infarctus douleur
        dyspnee essouffl cyanos monoxyde javel. antidote mortel letal urgence danger. dangereu nouveau|ne nourrisson
        enfle. engourd paralys premature malaise. secours samu.
        误吞 误服 误食 误喝 吞下 中毒 有毒 毒性 过量 昏迷 昏倒 晕倒 失去意识 不省人事 窒息 噎住 溺水 抽搐 惊厥 休克
        自杀 自残
        过敏 蛇咬 咬伤 叮咬 烧伤 烫伤 骨折 脑震荡 中风 心梗 心肌梗死 胸痛 气短 呼吸困难 发绀 一氧化碳 解毒 致命 急救
        抢救
        危险 紧急 急诊 危及 生命体征 麻木 瘫痪 肿胀 新生儿 婴儿 幼儿 早产 黄疸 高烧 剧痛 毒药
        ingerito. ingoiat avvelen intossic overdose. incoscient sveni soffoc annegat convuls ustion frattur infarto.
        ictus. emergenza pericolo urgente neonato lattante engoliu. engolir ingeriu. envenen intoxic inconscient
        desmai engasg afog convuls queimadur fratura emergencia perigo recem|nascido bebe.
        飲み込 誤飲 中毒 意識 窒息 けいれん 骨折 救急 危険 緊急 삼켰 중독 의식 질식 경련 골절 응급 위험
        проглотил отравл передоз сознани судорог перелом инфаркт инсульт опасн неотложн
    """,
    "failure": """
        crash hangs. hang. hanging. hung. freezes. frozen. stuck. stall fails. failing. failure flaky intermitten
        sporadic leak. leaks. leaking. spike. spikes. outage downtime unreachable refused. reset. corrupt lost. stale
        inconsistent duplicate duplicates twice|a slow. slower. slows. regress rollback restart reboot heap. dump.
        dumps. proxy. proxies. reproduce. reproduc workaround undefined|behavior undefined|behaviour off|by nightly
        production. prod. staging. deploy connection connections socket. sockets. packet. packets. dns. tls. oom.
        sturzt absturz hangt hangen blockier stockt ausfall ausfallt fehlschlag fehlersuche schlagt|fehl sporadisch
        gelegentlich leck. lecks. speicherleck langsam verlangsam neustart wiederhol unerreichbar abgelehn beschadigt
        verschwind ursache. ursachen. eingrenz produktiv verbindung verbindungen anfragen dienst. dienstes. server.
        servers. auftrag. heap protokoll. protokolle.
        cuelga. cuelgan. colgad colgado. bloquea. bloquean. atasca. falla. fallan. fallo. fallos. averia caida. caidas.
        intermiten esporadic fuga. fugas. lento. lenta. reinici inaccesible corromp corrupt duplica desaparec causa.
        causas. acotar. produccion conexion conexiones peticion peticiones servicio. servidor servidores registros.
        plante. plantent. bloque. bloquee. bloquent. fige. figee. echoue. echouent. panne. pannes. plantage intermitten
        sporadiq fuite. fuites. lent. lente. ralenti redemarr injoignable corromp corrompu disparai cause. causes.
        cerner. production. connexion connexions requete requetes serveur serveurs journaux. traitement.
        崩溃 卡住 卡死 死机 挂起 超时 失败 故障 偶发 间歇 泄漏 内存 宕机 重启 变慢 飙升 丢失 重复 不一致 无法连接 连接被
        排查 定位 复现 原因 线上 生产环境 服务器 请求 代理 日志 定时任务 夜间任务 报错 异常 堆转储
        blocca. bloccat fallisce. falliscono. guasto. guasti. intermitten sporadic perdita. lento. riavvi causa.
        cause. produzione. connession richiest servizio. server. trava. travam. travad falha. falham. falhas.
        vazament lentid reinici conexao conexoes requisic servico. servidor.
        クラッシュ 固まる ハング 停止 失敗 障害 漏れ 遅く 再起動 原因 サーバー 충돌 멈춥 멈추 실패 장애 누수 느려
        재시작 원인 서버
        зависает зависан падает сбой утечк медлен причин сервер запрос
    """,
    "finance": """
        mortgage loan. loans. bond. bonds. yield. yields. equity. dividend valuation value|a discount depreciat amortiz
        amortis interest|rate annuit portfolio hedge. hedging option. options. futures. swap. swaps. derivative.
        volatil inflation pension retire retirement savings. deductible taxed. taxable taxation vat. capital|gains
        cost|of cash|flow balance|sheet liquidity insolven bankrupt leverag invest investment invests. refinanc
        startup. shares. shareholder stake. dilution dilutive accounting accrual goodwill impairment payback. npv. irr.
        hypothek darlehen kredit. kredite. anleihe rendite dividende bewert unternehmenswert abschreib abzins zinssatz
        zinsen annuitat portfolio absicher optionen volatilitat rente. renten. rentner altersvorsorge steuerlich
        steuern. umsatzsteuer kapitalertrag kapitalkosten kapitalfluss bilanz bilanzier liquidit insolvenz konkurs
        verschuld uberschuld tilg tilgen umschuld aktie. aktien. anteile. gesellschafter beteiligung verwasser
        ruckstell anlegen. investier
        hipoteca prestamo bono. bonos. rendimiento rentabilid dividendo valora. valorar. valoracion amortiz deprecia
        descuento|de interes. tasa|de tipo|de cartera cobertura opciones volatilid pension jubilad jubilacion ahorro
        ahorros impuestos iva. plusvalia coste|de costo|de flujo|de balance. liquidez quiebra apalanc deuda. deudas.
        refinanc acciones. accionista socio. socios. participacion dilucion contab provision inverti inversion
        hypotheque pret. prets. emprunt. emprunter obligations. rendement dividende valoris valoriser amorti
        amortissement
        actualis taux. taux|d portefeuille couverture volatilite retraite retraites epargne impot impots tva.
        plus|value cout|du flux|de bilan. liquidit faillite endett surendett dette. dettes. rembours refinanc actions.
        actionnaire associe. associes. dilution comptab provision investi placement
        房贷 贷款 按揭 债券 收益率 股息 估值 折旧 摊销 贴现 折现 利率 年金 投资组合 对冲 期权 波动率 养老金 退休 税前
        税后
        增值税 资本成本 现金流 资产负债 流动性 破产 杠杆 负债 还清 还款 再融资 股份 股东 股权 稀释 会计 减值 净现值 投资
        内部收益率 合伙人 保险 报税
        mutuo. prestito obbligazion rendiment valut valutar ammort tasso. portafoglio pensione risparm imposte. bilancio
        fallimento debito. debiti. azioni. azionist soci. investi hipoteca emprestimo titulos. rendiment avali amortiz
        juros. carteira aposentad poupanca impostos balanco falencia divida. dividas. acoes. acionista socio. socios.
        住宅ローン 債券 利回り 減価償却 割引 税引 負債 株式 投資 담보대출 채권 수익률 감가상각 할인율 세전 부채 주식
        투자
        ипотек облигац доходност амортиз налог долг. инвестиц
    """,
    "engineering": """
        beam. beams. girder truss torque. stress. strain. deflect buckl fatigue. weld tolerance. load. loads. span.
        spans. voltage current. currents. resistor capacitor inductor circuit transistor amplifier impedance rectifier
        transformer. motor. pump. pumps. pipe. pipes. valve. pressure turbine heat|exchanger insulation. airfoil lift.
        drag. thrust. sensor. actuator pid. controller. feedback. transfer|function filter. sampling. signal. alloy
        concrete. foundation. soil. bearing. gear. gears. shaft. vibration resonan damping efficiency reactor
        trager. tragwerk balken. drehmoment spannung spannweite durchbieg verformung knick ermudung schweiss toleranz
        belast strom. widerstand. kondensator spule. schaltung verstarker impedanz gleichrichter pumpe rohrleitung
        ventil druck. druckverlust turbine warmetausch dammung auftrieb. schubkraft sensor regler regelkreis
        ruckkoppl ubertragungsfunktion abtast signal legier beton. fundament lager. getriebe welle. schwingung resonanz
        dampfung wirkungsgrad
        viga. vigas. esfuerzo. flexion. flecha. pandeo fatiga. soldad carga. cargas. luz. tension. corriente resistencia
        condensador bobina circuito amplificador impedancia rectificador bomba. tuberia valvula presion. turbina
        intercambiador aislamiento sustentacion sensor controlador realimenta funcion|de muestreo senal. aleacion
        hormigon. cimentacion rodamiento engranaje eje. vibracion resonancia amortigua rendimiento
        poutre. poutres. contrainte. contraintes. fleche. flambement fatigue. soudure charge. charges. portee. tension.
        courant. resistance. condensateur bobine. circuit. amplificateur impedance redresseur pompe. tuyau vanne.
        pression. turbine echangeur isolation. portance trainee. capteur regulateur retroaction fonction|de
        echantillonn signal. alliage beton. fondation roulement engrenage arbre. vibration resonance amortiss
        钢梁 横梁 桁架 扭矩 应力 应变 挠度 屈曲 疲劳 焊接 公差 载荷 荷载 跨度 承受 电压 电流 电阻 电容 电感 电路
        晶体管 放大器
        阻抗 变压器 电机 水泵 管道 阀门 压力 压降 涡轮 换热 隔热 升力 阻力 推力 传感器 控制器 反馈 传递函数 采样 信号
        合金
        混凝土 地基 轴承 齿轮 振动 共振 阻尼 效率
        trave. travi. flession carico. carichi. tensione. corrente circuito pompa. pressione. cuscinett ingranagg
        viga. tensao. corrente. circuito bomba. pressao. rolamento engrenagem 梁. 応力 荷重 電圧 回路 圧力 보의 응력
        하중 전압
        회로 балк напряжен нагрузк давлен
    """,
}
